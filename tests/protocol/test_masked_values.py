"""Some entries of a tensor: values with indices one way, values alone the other way."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.protocol import deltas
from fedwright.protocol.errors import BadBlob

RNG = np.random.default_rng(0)
DENSE = {"w": RNG.normal(size=(64, 64)).astype(np.float32), "b": RNG.normal(size=8).astype(np.float32)}
MASK = {"w": RNG.random((64, 64)) < 0.25}
SHAPES = {name: value.shape for name, value in DENSE.items()}


def test_values_and_mask_come_back() -> None:
    values, masks = deltas.load(deltas.encode(DENSE, keep=MASK))
    np.testing.assert_array_equal(values["w"], np.where(MASK["w"], DENSE["w"], 0))
    np.testing.assert_array_equal(values["b"], DENSE["b"])
    np.testing.assert_array_equal(masks["w"], MASK["w"])
    assert masks.keys() == {"w"}


def test_values_alone_come_back_with_the_mask_that_was_sent() -> None:
    blob = deltas.encode(DENSE, keep=MASK, implied=True)
    np.testing.assert_array_equal(
        deltas.decode(blob, SHAPES, sent=MASK)["w"], np.where(MASK["w"], DENSE["w"], 0).astype(np.float32)
    )
    assert len(blob) < len(deltas.encode(DENSE, keep=MASK))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (None, "without indices"),
        ({"w": np.ones((2, 2), bool)}, "without indices"),
        ({"w": np.ones((64, 64), bool)}, "for the 4096 entries"),
    ],
    ids=["none", "shape", "count"],
)
def test_values_alone_need_the_very_mask(sent: dict[str, NDArray[Any]] | None, words: str) -> None:
    with pytest.raises(BadBlob, match=words):
        deltas.decode(deltas.encode(DENSE, keep=MASK, implied=True), SHAPES, sent=sent)


def test_weights_that_come_without_indices_are_refused_by_a_device() -> None:
    with pytest.raises(BadBlob, match="without indices"):
        deltas.load(deltas.encode(DENSE, keep=MASK, implied=True))
