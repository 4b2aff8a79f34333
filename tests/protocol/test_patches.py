"""A model told as what changed: both sides make the same bytes, and nothing that was left out is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.protocol import deltas, patches, tensors
from fedwright.protocol.errors import BadBlob


def model(seed: int) -> dict[str, NDArray[Any]]:
    """Two matrices and a counter."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.normal(size=(8, 40)).astype(np.float32) for name in ("a", "b")}
    return {**drawn, "n": np.array([seed], np.int64)}


def keep(folder: Path, data: bytes) -> Path:
    file = folder / "base"
    file.write_bytes(data)
    return file


def test_a_change_that_loses_nothing_gives_the_model(tmp_path: Path) -> None:
    base, after = {"a": np.array([1.0, 2.0], np.float32)}, {"a": np.array([1.5, 4.0], np.float32)}

    change = patches.change_of(base, after, codec="float32")

    np.testing.assert_array_equal(tensors.load(change)["a"], [0.5, 2.0])
    assert patches.patched(keep(tmp_path, tensors.save(base)), change) == tensors.save(after)


@pytest.mark.parametrize(("codec", "keep_ratio"), [("int8", 1.0), ("int4", 1.0), ("int8", 0.2), ("int4", 0.1)])
def test_what_is_left_out_comes_with_later_changes(tmp_path: Path, codec: deltas.Codec, keep_ratio: float) -> None:
    held, goal = tensors.save(model(1)), model(2)

    far = []
    for _ in range(40):
        base = keep(tmp_path, held)
        change = patches.change_of(tensors.load(held), goal, codec=codec, keep_ratio=keep_ratio)
        held = patches.patched(base, change)
        far.append(float(np.abs(tensors.load(held)["a"] - goal["a"]).max()))

    assert far[0] > 1e-3
    assert far[-1] < 1e-4
    assert tensors.load(held)["n"] == 2


def test_models_of_one_kind_fit() -> None:
    small = {"a": np.zeros((2, 3), np.float32)}

    assert patches.fits(small, {"a": np.ones((2, 3), np.float32)})
    assert not patches.fits(small, {"a": np.zeros((2, 4), np.float32)})
    assert not patches.fits(small, {"a": np.zeros((2, 3), np.float64)})
    assert not patches.fits(small, {"b": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize(
    "change",
    [
        {"a": np.zeros((2, 4), np.float32)},
        {"b": np.zeros((2, 3), np.float32)},
        {"a": np.zeros((2, 3), np.int64)},
        {"a": np.zeros((2, 3), np.float32), "b": np.zeros(1, np.float32)},
    ],
    ids=["shape", "name", "type", "one too many"],
)
def test_a_change_of_another_model_is_refused(tmp_path: Path, change: patches.Tensors) -> None:
    base = keep(tmp_path, tensors.save({"a": np.zeros((2, 3), np.float32)}))

    with pytest.raises(BadBlob):
        patches.patched(base, tensors.save(dict(change)))
