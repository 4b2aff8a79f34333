"""What blocks do, compared by linear centred kernel alignment (CKA), and blocks that do alike put into groups.

sim(B, B') = CKA(inputs) + CKA(outputs) lies in 0 … 2. With u = [vec K_in / |K_in| ; vec K_out / |K_out|] of centred
Gram matrices, |u - u'|² = 4 - 2 sim, so that Euclidean K-means over u is K-means under the paper's similarity.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TINY = 1e-12


def pooled(activation: Tensor) -> Tensor:
    """[n, channels, places…] averaged over places, [n, width] as it is."""
    return activation.flatten(2).mean(2) if activation.dim() > 2 else activation


def unit_grams(features: Sequence[Tensor]) -> Tensor:
    """[b, n, n]: H X X' H / |H X X' H| of each X [n, width]; zero where all samples look the same."""
    centred = [x.double() - x.double().mean(0) for x in features]
    # Centring the columns of X centres both sides of its Gram matrix.
    grams = torch.stack([x @ x.T for x in centred])
    norms = grams.flatten(1).norm(dim=1).clamp_min(_TINY)
    return torch.div(grams, norms[:, None, None]).float()


def embed(seams: Sequence[Sequence[Tensor]]) -> Tensor:
    """u of every block [blocks, 2 n²]; seams: of each model what enters its first block and leaves each, [n, width]."""
    rows = []
    grams = unit_grams([feature for model in seams for feature in model]).flatten(1)
    start = 0
    for model in seams:
        own = grams[start : start + len(model)]
        rows.append(torch.cat([own[:-1], own[1:]], dim=1))
        start += len(model)
    return torch.cat(rows)


def similarities(embedded: Tensor) -> Tensor:
    """sim of every pair of blocks [blocks, blocks]."""
    return embedded @ embedded.T


def group(embedded: Tensor, count: int, *, seed: int) -> NDArray[np.int64]:
    """The group of every block by K-means (k-means++, ten restarts); fewer groups where blocks are few or equal."""
    # scikit-learn takes a second to import, and only a server that groups blocks needs it.
    from sklearn.cluster import KMeans

    # Distances live in the span of the rows, so their coordinates in it do as well as 2 n² numbers.
    rows = _coordinates(embedded)
    distinct = len(np.unique(rows.round(6), axis=0))
    found = KMeans(min(count, distinct), n_init=10, random_state=seed % 2**32).fit_predict(rows)
    return np.asarray(found, np.int64)


def _coordinates(embedded: Tensor) -> NDArray[np.float64]:
    """Coordinates with the same distances in as few dimensions as there are blocks: U = Q √λ of U U' = Q λ Q'."""
    if embedded.shape[0] >= embedded.shape[1]:
        return np.asarray(embedded.double().numpy())
    values, vectors = torch.linalg.eigh(similarities(embedded).double())
    return np.asarray((vectors * values.clamp_min(0).sqrt()).numpy())
