"""Tensors as safetensors bytes."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedwright.protocol import tensors
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.tensor_header import metadata

EXAMPLE: dict[str, NDArray[Any]] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "steps": np.array(7, dtype=np.int64),
    "none": np.zeros((0, 4), dtype=np.float32),
    "mask": np.array([True, False]),
    "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
}


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        np.testing.assert_array_equal(tensor, right[name], strict=True)


def test_bytes_and_files_round_trip(tmp_path: Path) -> None:
    blob = tensors.save(EXAMPLE, {"step": "3", "a": "b"})
    file = tmp_path / "blob"
    file.write_bytes(blob)

    assert_same(tensors.load(blob), EXAMPLE)
    assert_same(tensors.load(file), EXAMPLE)
    assert metadata(blob) == metadata(file) == {"step": "3", "a": "b"}


def test_the_library_reads_what_we_write_and_the_other_way_round() -> None:
    assert_same(safetensors.numpy.load(tensors.save(EXAMPLE)), EXAMPLE)
    plain = {"w": EXAMPLE["w"]}
    assert_same(tensors.load(safetensors.numpy.save(plain)), plain)
    assert metadata(safetensors.numpy.save(plain)) == {}


def test_the_order_of_names_does_not_matter() -> None:
    turned = dict(reversed(EXAMPLE.items()))

    assert tensors.save(turned, {"b": "1", "a": "2"}) == tensors.save(EXAMPLE, {"a": "2", "b": "1"})


def test_types_without_a_name_on_the_wire_are_refused() -> None:
    with pytest.raises(BadBlob, match="tensor w has type complex128"):
        tensors.save({"w": np.zeros(2, dtype=np.complex128)})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadBlob, match="absent"):
        tensors.load(tmp_path / "absent")
    with pytest.raises(BadBlob, match="absent"):
        metadata(tmp_path / "absent")


def test_a_type_that_numpy_lacks_is_refused() -> None:
    head = b'{"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'

    with pytest.raises(BadBlob):
        tensors.load(len(head).to_bytes(8, "little") + head + b"\0\0")


def test_deep_nesting_is_refused() -> None:
    head = b'{"x":' + b"[" * 100_000

    for read in (tensors.load, metadata):
        with pytest.raises(BadBlob):
            read(len(head).to_bytes(8, "little") + head)


@given(st.binary(max_size=300))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(BadBlob):
        tensors.load(data)


@given(st.data())
def test_damaged_blobs_are_refused_or_hold_other_tensors(data: st.DataObject) -> None:
    blob = bytearray(tensors.save(EXAMPLE, {"a": "b"}))
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(blob[: data.draw(st.integers(0, len(blob)))])

    for read in (tensors.load, metadata):
        with suppress(BadBlob):
            assert isinstance(read(cut), dict)


def test_a_mapped_file_holds_what_was_saved_and_cannot_be_written(tmp_path: Path) -> None:
    # One odd byte before numbers of four bytes: they are copied, because they do not begin at a multiple of four.
    given: dict[str, NDArray[Any]] = {
        "a": np.array([7], np.int8),
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "c": np.zeros((0, 2)),
    }
    (tmp_path / "blob").write_bytes(tensors.save(given, {"note": "x"}))

    found = tensors.map_file(tmp_path / "blob")

    assert found.keys() == given.keys()
    for name, value in given.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == value.dtype
    with pytest.raises(ValueError, match="read-only"):
        found["a"][0] = 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        (1 << 40).to_bytes(8, "little") + b"{}",
        (70).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'.ljust(70) + bytes(8),
        (70).to_bytes(8, "little") + b'{"a":{"dtype":"F99","shape":[4],"data_offsets":[0,16]}}'.ljust(70) + bytes(16),
        (70).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}'.ljust(70) + bytes(16),
    ],
    ids=["empty", "short", "endless header", "too few bytes", "unknown type", "negative size"],
)
def test_a_file_that_is_no_blob_is_not_mapped(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "blob").write_bytes(data)

    with pytest.raises(BadBlob, match=r"is not a safetensors blob|is too short for tensors"):
        tensors.map_file(tmp_path / "blob")
