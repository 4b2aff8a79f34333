"""Deltas: what each codec keeps, what it costs, and that nothing from the wire gets past the decoder."""

import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedwright.protocol import deltas, tensors
from fedwright.protocol.errors import BadBlob, BadUpdate
from fedwright.protocol.varints import pack_gaps, unpack_gaps

Array = npt.NDArray[Any]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)
TENSORS = st.dictionaries(st.text(max_size=8), hnp.arrays(np.float32, SHAPES, elements=FLOATS), max_size=4)
CODECS = st.sampled_from(["float32", "bf16", "int8"])


def shapes_of(given_tensors: dict[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in given_tensors.items()}


def round_trip(given_tensors: dict[str, Array], **how: Any) -> dict[str, Array]:
    return deltas.decode(deltas.encode(given_tensors, **how), shapes_of(given_tensors))


@given(TENSORS)
def test_float32_comes_back_to_the_bit(given_tensors: dict[str, Array]) -> None:
    back = round_trip(given_tensors)

    for name, tensor in given_tensors.items():
        assert back[name].tobytes() == tensor.tobytes()
        assert back[name].shape == tensor.shape


@given(TENSORS)
def test_bf16_is_off_by_at_most_half_a_step(given_tensors: dict[str, Array]) -> None:
    back = round_trip(given_tensors, codec="bf16")

    for name, tensor in given_tensors.items():
        # Eight significant bits; below the normal numbers the step is 2^-133.
        assert (np.abs(back[name] - tensor) <= np.abs(tensor) * 2.0**-8 + 2.0**-133).all()


def test_bf16_rounds_ties_to_even() -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)], dtype=np.float32)

    assert round_trip({"x": ties}, codec="bf16")["x"].tolist() == [1.0, 1 + 2**-6, -1.0]


@given(TENSORS)
def test_int8_is_off_by_at_most_half_a_scale_of_its_channel(given_tensors: dict[str, Array]) -> None:
    back = round_trip(given_tensors, codec="int8")

    for name, tensor in given_tensors.items():
        rows = tensor.reshape(1 if tensor.ndim < 2 else tensor.shape[0], -1) if tensor.size else tensor.reshape(0, 0)
        scales = np.abs(rows).max(axis=1, initial=0.0) / 127
        off = np.abs(back[name] - tensor).reshape(rows.shape)
        assert (off <= scales[:, None] * 0.5001 + 127 * 2.0**-126).all()


def test_int8_has_one_scale_per_channel() -> None:
    rows = np.array([[127.0, -64.0], [0.127, 0.001]], dtype=np.float32)

    np.testing.assert_allclose(round_trip({"x": rows}, codec="int8")["x"], rows, rtol=1e-6)


@given(TENSORS, st.sampled_from([None, 0.0, 0.1, 0.5]))
def test_int4_is_off_by_at_most_half_a_scale_of_its_block(given_tensors: dict[str, Array], keep: float | None) -> None:
    back = round_trip(given_tensors, codec="int4", keep=keep)

    for name, tensor in given_tensors.items():
        sent = np.ones(tensor.shape, bool) if keep is None else back[name] != 0
        values, found = tensor[sent].astype(np.float64), back[name][sent]
        # Scales go by what is sent; of fewer blocks than that none is wider than the widest.
        widest = np.abs(tensor).max(initial=0.0) / 7
        assert (np.abs(found - values) <= widest * 0.5001 + 7 * 2.0**-126).all()


def test_int4_has_one_scale_per_block_and_takes_an_eighth_of_float32() -> None:
    rows = np.concatenate([np.tile([7.0, -3.0, 0.0, 1.0], 16), np.tile([0.007, 0.001], 33)[:65]]).astype(np.float32)

    np.testing.assert_allclose(round_trip({"x": rows}, codec="int4")["x"], rows, rtol=1e-6)
    noise = np.random.default_rng(0).normal(size=(100, 1000)).astype(np.float32)
    assert len(deltas.encode({"w": noise}, codec="int4")) < 58_000


@given(TENSORS, CODECS, st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_top_k_keeps_the_largest(given_tensors: dict[str, Array], codec: Any, keep: float) -> None:
    whole = round_trip(given_tensors, codec=codec)
    back = round_trip(given_tensors, codec=codec, keep=keep)

    for name, tensor in given_tensors.items():
        count = int(np.ceil(keep * tensor.size))
        left_out = np.sort(np.abs(tensor).reshape(-1))[: tensor.size - count]
        kept = back[name] != 0
        assert kept.sum() <= count
        assert (back[name][kept] == whole[name][kept]).all()
        assert (np.abs(tensor[~kept & (whole[name] != 0)]) <= left_out.max(initial=0.0)).all()


@given(st.data(), CODECS)
def test_masks_say_what_is_sent(data: st.DataObject, codec: Any) -> None:
    tensor = data.draw(hnp.arrays(np.float32, SHAPES, elements=FLOATS))
    mask = data.draw(hnp.arrays(bool, tensor.shape))
    other = np.ones(3, dtype=np.float32)

    back = round_trip({"x": tensor, "other": other}, codec=codec, keep={"x": mask})

    whole = round_trip({"x": tensor}, codec=codec)["x"]
    np.testing.assert_array_equal(back["x"], np.where(mask, whole, 0))
    np.testing.assert_array_equal(back["other"], other)


@given(st.sets(st.integers(0, 2**31 - 1), max_size=60))
def test_gaps_round_trip(chosen: set[int]) -> None:
    indices = np.array(sorted(chosen), dtype=np.int64)

    back = unpack_gaps(pack_gaps(indices), count=indices.size, size=2**31)

    np.testing.assert_array_equal(back, indices)


def test_gaps_are_small() -> None:
    assert pack_gaps(np.array([0, 1, 2, 130, 259])).tolist() == [0, 0, 0, 127, 0x80, 0x01]


@pytest.mark.parametrize(
    ("packed", "count", "size"),
    [([0x80], 1, 9), ([0, 0], 1, 9), ([9], 1, 9), ([4, 4], 2, 9), ([0x80] * 5 + [0], 2, 9), ([], 1, 9)],
    ids=["no end", "too many", "behind", "sum behind", "too long", "too few"],
)
def test_impossible_gaps_are_refused(packed: list[int], count: int, size: int) -> None:
    with pytest.raises(BadBlob):
        unpack_gaps(np.array(packed, dtype=np.uint8), count=count, size=size)


def test_sizes_on_the_wire() -> None:
    noise = np.random.default_rng(0).normal(size=(100, 1000)).astype(np.float32)
    sparse = {"w": noise}

    sizes = {codec: len(deltas.encode({"w": noise}, codec=codec)) for codec in ("float32", "bf16", "int8")}
    one_percent = len(deltas.encode(sparse, codec="int8", keep=0.01))

    assert 330_000 < sizes["float32"] < 380_000
    assert 140_000 < sizes["bf16"] < 180_000
    assert 80_000 < sizes["int8"] < 102_000
    assert one_percent < 3_000


def test_other_types_go_unchanged() -> None:
    mixed: dict[str, NDArray[Any]] = {"w": np.ones(4, dtype=np.float32), "seen": np.array(3, dtype=np.int64)}

    back = round_trip(mixed, codec="int8")

    assert back["seen"].dtype == np.int64
    assert back["seen"] == 3


def test_equal_tensors_give_equal_bytes() -> None:
    some = {"a": np.arange(200, dtype=np.float32), "b": np.zeros((9, 99), dtype=np.float32)}

    assert deltas.encode(some, codec="int8", keep=0.3) == deltas.encode(
        dict(reversed(some.items())), codec="int8", keep=0.3
    )


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_cannot_be_rounded(codec: Any, value: float) -> None:
    with pytest.raises(BadUpdate, match="tensor w holds values that are not finite"):
        deltas.encode({"w": np.array([value], dtype=np.float32)}, codec=codec)


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_error_feedback_loses_nothing_over_time(codec: Any) -> None:
    generator = np.random.default_rng(1)
    residual: dict[str, Array] = {}
    wanted = np.zeros((4, 50))
    received = np.zeros((4, 50))
    for _ in range(200):
        step = {"w": generator.normal(size=(4, 50)).astype(np.float32)}
        blob, residual = deltas.encode_with_feedback(step, residual, codec=codec, keep=0.1)
        wanted += step["w"]
        received += deltas.decode(blob, {"w": (4, 50)})["w"]

    np.testing.assert_allclose(received + residual["w"], wanted, atol=1e-3)
    assert np.abs(residual["w"]).max() < 25


def test_a_plain_safetensors_blob_is_a_delta() -> None:
    plain = {"w": np.ones((2, 2), dtype=np.float32)}

    np.testing.assert_array_equal(deltas.decode(tensors.save(plain), {"w": (2, 2)})["w"], plain["w"])


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"w": (3, 2)}, r"tensor w has shape \[2, 3\] but must have \[3, 2\]"),
        ({"w": (2, 3), "v": (1,)}, "v is missing"),
        ({}, "w is missing, unknown"),
    ],
    ids=["shape", "missing", "unknown"],
)
@pytest.mark.parametrize("codec", ["float32", "int8", "int4"])
def test_what_was_not_agreed_is_refused(codec: Any, shapes: dict[str, tuple[int, ...]], says: str) -> None:
    blob = deltas.encode({"w": np.ones((2, 3), dtype=np.float32)}, codec=codec)

    with pytest.raises(BadBlob, match=says):
        deltas.decode(blob, shapes)


def forged(entry: dict[str, Any], **pieces: Array) -> bytes:
    return tensors.save(
        {f"{kind}:w": piece for kind, piece in pieces.items()},
        {deltas.KEY: msgspec.json.encode({"w": entry}).decode()},
    )


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(2**26))
    blob = forged({"codec": "float32", "shape": [4], "count": 4, "zstd": True}, v=np.frombuffer(bomb, dtype=np.uint8))

    with pytest.raises(BadBlob, match="do not unpack to 16 bytes"):
        deltas.decode(blob, {"w": (4,)})


@pytest.mark.parametrize(
    ("entry", "pieces"),
    [
        ({"codec": "int8", "shape": [4], "count": 4}, {"v": np.zeros(4, np.int8)}),
        ({"codec": "int8", "shape": [4], "count": 4}, {"v": np.zeros(4, np.float32), "s": np.ones(1, np.float32)}),
        *(
            ({"codec": "int8", "shape": [4], "count": 4}, {"v": np.zeros(4, np.int8), "s": np.full(1, bad, np.float32)})
            for bad in (np.nan, np.inf, -1.0, 1e38)
        ),
        ({"codec": "int4", "shape": [4], "count": 4}, {"v": np.zeros(2, np.uint8)}),
        ({"codec": "int4", "shape": [4], "count": 4}, {"v": np.zeros(4, np.uint8), "s": np.ones(1, np.float32)}),
        ({"codec": "int4", "shape": [4], "count": 4}, {"v": np.zeros(2, np.uint8), "s": np.full(1, 1e38, np.float32)}),
        ({"codec": "bf16", "shape": [4], "count": 3}, {"v": np.zeros(3, np.uint16)}),
        ({"codec": "bf16", "shape": [4], "count": 5}, {"v": np.zeros(5, np.uint16)}),
        ({"codec": "bf16", "shape": [4], "count": 2, "indices": "gaps"}, {"v": np.zeros(2, np.uint16)}),
        (
            {"codec": "bf16", "shape": [4], "count": 2, "indices": "bitmap"},
            {"v": np.zeros(2, np.uint16), "i": np.array([0xF0], np.uint8)},
        ),
        ({"codec": "float32", "shape": [4], "count": 4, "zstd": True}, {"v": np.zeros(9, np.uint8)}),
        ({"codec": "gzip", "shape": [4], "count": 4}, {"v": np.zeros(4, np.float32)}),
        ({"codec": "bf16", "shape": [-4], "count": 4}, {"v": np.zeros(4, np.uint16)}),
    ],
    ids=[
        "no scales",
        "wrong type",
        "nan",
        "infinite",
        "negative scale",
        "huge scale",
        "no scales of blocks",
        "four bytes for four nibbles",
        "huge scale of a block",
        "few",
        "many",
        "no indices",
        "bitmap",
        "no zstd",
        "unknown codec",
        "negative",
    ],
)
def test_forged_deltas_are_refused(entry: dict[str, Any], pieces: dict[str, Array]) -> None:
    with pytest.raises(BadBlob):
        deltas.decode(forged(entry, **pieces), {"w": (4,)})


@given(st.data(), CODECS | st.just("int4"), st.sampled_from([None, 0.2]))
def test_damaged_deltas_are_refused_or_decode_to_the_agreed_shape(
    data: st.DataObject, codec: Any, keep: float | None
) -> None:
    tensor = np.sin(np.arange(400, dtype=np.float32)).reshape(20, 20)
    blob = bytearray(deltas.encode({"w": tensor}, codec=codec, keep=keep))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))

    with suppress(BadBlob):
        assert deltas.decode(bytes(blob), {"w": (20, 20)})["w"].shape == (20, 20)


@given(
    st.fixed_dictionaries(
        {
            "codec": CODECS,
            "shape": st.just([4]),
            "count": st.integers(0, 5),
            "indices": st.sampled_from(["none", "gaps", "bitmap"]),
            "zstd": st.booleans(),
        }
    ),
    st.dictionaries(
        st.sampled_from("vsi"),
        hnp.arrays(st.sampled_from([np.uint8, np.int8, np.uint16, np.float32]), st.integers(0, 6)),
    ),
)
def test_arbitrary_pieces_are_refused_or_decode(entry: dict[str, Any], pieces: dict[str, Array]) -> None:
    with suppress(BadBlob):
        assert deltas.decode(forged(entry, **pieces), {"w": (4,)})["w"].shape == (4,)


_HOSTILE = """
import resource, sys
import numpy as np
from fedwright.protocol import deltas, tensors
from fedwright.protocol.errors import BadBlob
import zstandard
blob = sys.stdin.buffer.read()
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 2**26, used + 2**26))
try:
    deltas.decode(blob, {"w": (4,)})
except BadBlob:
    sys.exit(0)
sys.exit(1)
"""


@pytest.mark.parametrize(
    "blob",
    [
        forged(
            {"codec": "float32", "shape": [4], "count": 4, "zstd": True},
            v=np.frombuffer(zstandard.ZstdCompressor().compress(bytes(2**29)), dtype=np.uint8),
        ),
        forged({"codec": "bf16", "shape": [2**31], "count": 2**31}, v=np.zeros(4, np.uint16)),
        (2**62).to_bytes(8, "little") + b"{}",
        b"\x40" + bytes(7) + b'{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}',
    ],
    ids=["bomb", "shape", "header", "tensor"],
)
def test_memory_stays_within_the_agreed_shapes(blob: bytes) -> None:
    done = subprocess.run([sys.executable, "-c", _HOSTILE], input=blob, capture_output=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr.decode()
