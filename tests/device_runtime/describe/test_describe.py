"""Descriptors: the same everywhere, different for different data, for any kind of input."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.describe.descriptor import GRAPHS, SEED, SIZE, WORDS, describe, drawn_rows, features
from make_extractor import graphs

RNG = np.random.default_rng(0)
KINDS: dict[str, NDArray[Any]] = {
    "image": RNG.normal(size=(70, 3, 9, 9)).astype(np.float32),
    "dot": RNG.normal(size=(5, 1, 1, 1)).astype(np.float32),
    "vector": RNG.normal(size=(5, 12)).astype(np.float32),
    "series": RNG.normal(size=(5, 6, 20)).astype(np.float32),
    "words": RNG.integers(0, 9999, (5, 23)),
}


@pytest.mark.parametrize("x", KINDS.values(), ids=KINDS)
def test_a_descriptor_is_finite_and_repeatable(x: NDArray[Any]) -> None:
    found = describe(x)
    assert len(found) == SIZE
    assert np.isfinite(found).all()
    assert np.any(found)
    assert describe(x.copy()) == found
    assert describe(x[:3]) != found


def test_it_is_the_mean_over_samples() -> None:
    x = KINDS["vector"]
    single = np.mean([describe(x[row : row + 1]) for row in range(len(x))], axis=0)
    np.testing.assert_allclose(np.array(describe(x)), single, rtol=1e-5)


def test_a_thousand_of_a_sorted_file_are_of_all_classes() -> None:
    """Of 1,999 rows every second one, cut at a thousand, were the first thousand."""
    x = np.repeat(np.arange(4, dtype=np.float32), 500)[:1999, None] * np.ones(3, np.float32)
    rows = drawn_rows(len(x))
    assert len(set(rows.tolist())) == 1000
    assert np.bincount(x[rows, 0].astype(int)).min() > 200
    np.testing.assert_allclose(describe(x), features(x).mean(axis=0), rtol=0.06)
    assert drawn_rows(1000).tolist() == list(range(1000))


def test_the_spread_of_pixels_is_of_all_classes() -> None:
    """The first thousand images of a file that is sorted by class were flat ones."""
    x = np.zeros((2000, 1, 2, 2), np.float32)
    x[1000:, :, 0] = 1.0
    y = np.repeat([0, 1], 1000)
    own = LocalData(x, y, x[:0], y[:0], 2, (1000, 1000), (1, 2, 2))
    assert own.summary().pixel_std == pytest.approx(0.25, abs=0.03)


def test_no_samples_give_zeros() -> None:
    assert describe(np.zeros((0, 1, 8, 8), np.float32)) == [0.0] * SIZE


def by_hand(x: NDArray[Any]) -> NDArray[Any]:
    """The same features without onnxruntime: patches, products, ReLU."""
    rng = np.random.default_rng(SEED)

    def draw(inputs: int, outputs: int) -> NDArray[Any]:
        return rng.standard_normal((inputs, outputs), dtype=np.float32) * np.float32(np.sqrt(2.0 / inputs))

    if np.issubdtype(x.dtype, np.integer):
        table = rng.standard_normal((WORDS, SIZE), dtype=np.float32)
        x = table[x.reshape(len(x), -1) % WORDS].mean(axis=1)
    if x.ndim == 4:
        for width in (16, 32, SIZE):
            padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
            windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
            filters = draw(x.shape[1] * 9, width).reshape(-1, 3, 3, width)
            x = np.maximum(np.einsum("nchwij,cijk->nkhw", windows, filters), 0)
        means: NDArray[Any] = x.mean(axis=(2, 3))
        return means
    flat = x.reshape(len(x), -1)
    answer: NDArray[Any] = np.maximum(np.maximum(flat @ draw(flat.shape[1], SIZE), 0) @ draw(SIZE, SIZE), 0)
    return answer


@pytest.mark.parametrize("x", KINDS.values(), ids=KINDS)
def test_the_graph_computes_what_the_formula_says(x: NDArray[Any]) -> None:
    np.testing.assert_allclose(features(x), by_hand(x), rtol=1e-4, atol=1e-5)


GOLDEN = {
    "image": ((np.arange(128).reshape(2, 1, 8, 8) % 7).astype(np.float32), [0.0, 3.1841, 0.0, 0.0, 1.79308, 0.0]),
    "vector": ((np.arange(24).reshape(2, 12) % 5).astype(np.float32), [0.8851, 1.26934, 1.64659, 0.0992, 0.80856]),
    "words": (np.arange(12).reshape(2, 6) * 777, [0.17461, 0.0695, 0.06606, 0.5209, 0.59157, 0.59504]),
}


@pytest.mark.parametrize(("x", "first"), GOLDEN.values(), ids=GOLDEN)
def test_descriptors_stay_the_numbers_they_were(x: NDArray[Any], first: list[float]) -> None:
    np.testing.assert_allclose(describe(x)[: len(first)], first, atol=2e-5)


def test_the_package_carries_the_graphs_that_the_server_side_makes() -> None:
    for name, data in graphs().items():
        assert GRAPHS.joinpath(f"{name}.onnx").read_bytes() == data
