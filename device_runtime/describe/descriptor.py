"""A device's descriptor: the mean of frozen random features over its samples.

The extractor is an inference graph that the package carries, run by onnxruntime. Every device draws the same weights
from the same seed, so descriptors can be compared; they are never trained.
"""

from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

GRAPHS = resources.files("fedwright.device_runtime.describe")
SIZE = 128
# Channels of the convolutions that look at images.
LAYERS = (16, 32, SIZE)
WORDS = 4096
SEED = 20240131
# A mean over this many samples is as good as one over more, and takes a small board about a second.
SAMPLES = 1000
BATCH = 64


def describe(x: Array, *, words: bool = True) -> list[float]:
    """The descriptor of samples [n, *shape]; zeros without any. words: whole numbers are word numbers."""
    total = np.zeros(SIZE)
    rows = drawn_rows(len(x))
    for start in range(0, len(rows), BATCH):
        batch = np.asarray(x[rows[start : start + BATCH]])
        total += features(batch if words else batch.astype(np.float32)).sum(axis=0)
    mean = total / max(1, len(rows))
    return [float(value) for value in mean.astype(np.float32)]


def drawn_rows(samples: int) -> NDArray[np.int64]:
    """All rows, or SAMPLES of them at random, always the same: files are often sorted by class."""
    if samples <= SAMPLES:
        return np.arange(samples)
    return np.sort(np.random.default_rng([SEED, samples]).choice(samples, SAMPLES, replace=False))


def features(x: Array) -> Array:
    """phi(x) [n, SIZE]: three random convolutions for images, two random layers for anything else."""
    if np.issubdtype(x.dtype, np.integer):
        ids = x.reshape(len(x), -1).astype(np.int64) % WORDS
        return _run("words", {"x": ids, **_words()})
    x = x.astype(np.float32)
    if x.ndim == 4:
        return _run("image", {"x": x, **_filters(x.shape[1])})
    rows = x.reshape(len(x), -1)
    return _run("flat", {"x": rows, **_layers(rows.shape[1])})


def _run(graph: str, inputs: dict[str, Array]) -> Array:
    return np.asarray(_session(graph).run(None, inputs)[0])


@lru_cache(maxsize=3)
def _session(graph: str) -> Any:
    # Imported here: what only draws weights needs no runtime.
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # A descriptor is made once in an agent's life; an arena would keep its memory for good.
    options.enable_cpu_mem_arena = False
    data = GRAPHS.joinpath(f"{graph}.onnx").read_bytes()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


@lru_cache(maxsize=2)
def _filters(channels: int) -> dict[str, Array]:
    """w1, w2, w3: [width, channels, 3, 3]."""
    rng, found = np.random.default_rng(SEED), {}
    for number, width in enumerate(LAYERS, start=1):
        flat = _weights(rng, channels * 9, width)
        found[f"w{number}"] = np.ascontiguousarray(flat.T).reshape(width, channels, 3, 3)
        channels = width
    return found


@lru_cache(maxsize=2)
def _layers(inputs: int) -> dict[str, Array]:
    """w1 [inputs, SIZE], w2 [SIZE, SIZE]."""
    rng = np.random.default_rng(SEED)
    return {"w1": _weights(rng, inputs, SIZE), "w2": _weights(rng, SIZE, SIZE)}


@lru_cache(maxsize=1)
def _words() -> dict[str, Array]:
    """A random vector for every word, and two layers."""
    rng = np.random.default_rng(SEED)
    table = rng.standard_normal((WORDS, SIZE), dtype=np.float32)
    return {"table": table, "w1": _weights(rng, SIZE, SIZE), "w2": _weights(rng, SIZE, SIZE)}


def _weights(rng: "np.random.Generator", inputs: int, outputs: int) -> Array:
    weights: Array = rng.standard_normal((inputs, outputs), dtype=np.float32) * np.float32(np.sqrt(2.0 / inputs))
    return weights
