"""A device's descriptor: the mean of frozen random features over its samples.

Every device draws the same features from the same seed, so descriptors can be compared; they are never trained.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SIZE = 128
SEED = 20240131
# A mean over this many samples is as good as one over more, and takes a small board about a second.
SAMPLES = 1000
BATCH = 64


def describe(x: Array) -> list[float]:
    """The descriptor of samples [n, *shape]; zeros without any."""
    total = np.zeros(SIZE)
    chosen = x[:: max(1, len(x) // SAMPLES)][:SAMPLES]
    for start in range(0, len(chosen), BATCH):
        total += features(np.asarray(chosen[start : start + BATCH])).sum(axis=0)
    mean = total / max(1, len(chosen))
    return [float(value) for value in mean.astype(np.float32)]


def features(x: Array) -> Array:
    """phi(x) [n, SIZE]: three random convolutions for images, two random layers for anything else."""
    rng = np.random.default_rng(SEED)
    if np.issubdtype(x.dtype, np.integer):
        x = _words(x, rng)
    x = x.astype(np.float32)
    if x.ndim == 4:
        for width in (16, 32, SIZE):
            x = _convolved(x, width, rng)
        return np.asarray(x.mean(axis=(2, 3)))
    flat = x.reshape(len(x), -1)
    hidden = np.maximum(flat @ _weights(rng, flat.shape[1], SIZE), 0)
    return np.asarray(np.maximum(hidden @ _weights(rng, SIZE, SIZE), 0))


def _convolved(x: Array, width: int, rng: "np.random.Generator") -> Array:
    """A random 3×3 convolution with stride 2 and ReLU; images of one pixel a side keep it."""
    n, channels, height, _ = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    step = 2 if height > 1 else 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::step, ::step]
    rows, columns = windows.shape[2:4]
    patches = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * rows * columns, channels * 9)
    made = np.maximum(patches @ _weights(rng, channels * 9, width), 0)
    return np.asarray(made.reshape(n, rows, columns, width).transpose(0, 3, 1, 2))


def _words(x: Array, rng: "np.random.Generator") -> Array:
    """The mean random vector of each sample's word ids."""
    table = rng.standard_normal((4096, SIZE), dtype=np.float32)
    return np.asarray(table[x.reshape(len(x), -1) % len(table)].mean(axis=1))


def _weights(rng: "np.random.Generator", inputs: int, outputs: int) -> Array:
    weights: Array = rng.standard_normal((inputs, outputs), dtype=np.float32) * np.float32(np.sqrt(2.0 / inputs))
    return weights
