"""Devices grouped by how their last layers differ (FedConv's edge servers).

Paper: K-means on the KL divergence between parameters. A divergence of raw weights does not exist (they are negative)
and K-means needs a mean, so each layer becomes p = softmax(vec W) and is placed at sqrt(p), where the Euclidean
distance is the Hellinger distance of the distributions. K is the one with the best silhouette.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError

Array = NDArray[Any]
Floats = NDArray[np.float64]

# Groups that overlap more than this are not worth telling apart.
LEAST_SILHOUETTE = 0.1
RESTARTS = 10


def softmax(logits: Array) -> Floats:
    """exp(x) / sum exp(x) along the last axis."""
    raised = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    result: Floats = raised / raised.sum(axis=-1, keepdims=True)
    return result


def embed(layers: Sequence[Array]) -> Floats:
    """sqrt(softmax(vec W)) of every layer [n, entries]; |u - u'| is sqrt 2 times the Hellinger distance."""
    return np.sqrt(softmax(np.stack([layer.reshape(-1) for layer in layers])))


def cluster(layers: Mapping[str, Array], *, seed: int, most: int = 5, exact: int | None = None) -> dict[str, int]:
    """The cluster of every device, numbered in the order of their first device.

    most: K is chosen by silhouette among 2 … most, and is 1 where no K separates. exact: K itself.
    """
    devices = sorted(layers)
    _check_sizes({device: layers[device] for device in devices})
    if exact is not None and exact > len(devices):
        raise ConfigError(
            f"{exact} clusters are asked for but there are {len(devices)} devices; lower cluster.exact or add devices"
        )
    points = embed([layers[device] for device in devices])
    # More points than distinct ones cannot be told apart.
    distinct = len(np.unique(points, axis=0))
    if exact is not None:
        labels = _kmeans(points, min(exact, distinct), seed)
    else:
        labels = _best(points, min(most, distinct, len(devices) - 1), seed)
    order = list(dict.fromkeys(labels.tolist()))
    return {device: order.index(label) for device, label in zip(devices, labels.tolist(), strict=True)}


def named_clusters(labels: Mapping[str, int]) -> dict[str, str]:
    """The cluster of every device, called after its first device."""
    first: dict[int, str] = {}
    for device in sorted(labels):
        first.setdefault(labels[device], device)
    return {device: first[label] for device, label in labels.items()}


def _best(points: Floats, most: int, seed: int) -> NDArray[np.int64]:
    """The labels whose silhouette is largest; one cluster when none is large enough."""
    # scikit-learn takes a second to import, and only an edge that clusters needs it.
    from sklearn.metrics import silhouette_score

    best, labels = LEAST_SILHOUETTE, np.zeros(len(points), np.int64)
    for count in range(2, most + 1):
        found = _kmeans(points, count, seed)
        score = float(silhouette_score(points, found))
        if score > best:
            best, labels = score, found
    return labels


def _kmeans(points: Floats, count: int, seed: int) -> NDArray[np.int64]:
    from sklearn.cluster import KMeans

    if count == 1:
        return np.zeros(len(points), np.int64)
    found = KMeans(count, n_init=RESTARTS, random_state=seed % 2**32).fit_predict(points)
    return np.asarray(found, np.int64)


def _check_sizes(layers: Mapping[str, Array]) -> None:
    if not layers:
        raise ConfigError("there are no devices to cluster; wait until some have answered")
    (first, layer), *others = layers.items()
    for device, other in others:
        if other.shape != layer.shape:
            raise ConfigError(
                f"the last layers of {first} and {device} have shapes {list(layer.shape)} and {list(other.shape)}; "
                f"cluster devices of one size, and link clusters of different size by exchange"
            )
