"""Class means in a sum: each device's by its share of the class, so that the sum is the mean over all samples.

share_c = n_c / n,  M_c = share_c · mean_c     summed by w:  mean_c = Σ w M_c / Σ w share_c
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
# A class of which nobody has more is one that nobody has: its sum is what rounding leaves.
LEAST_SHARE = 1e-6


def shared_means(means: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """What a device puts into a sum for its class means [classes, features] and their counts [classes]."""
    shares = counts / max(1.0, float(counts.sum()))
    return (means * shares[:, None]).astype(np.float32), shares.astype(np.float32)


def pooled_means(shared: Floats, shares: Floats, samples: float) -> tuple[Floats, Floats]:
    """The class means and counts behind the mean of what devices put in; samples: of all of them."""
    known = shares > LEAST_SHARE
    means = np.where(known[:, None], shared / np.where(known, shares, 1.0)[:, None], 0.0)
    return means.astype(np.float32), np.where(known, shares * samples, 0.0).astype(np.float32)
