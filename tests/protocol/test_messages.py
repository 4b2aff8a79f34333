"""Every message survives the wire; whatever else arrives ends in BadMessage."""

from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwright.protocol import codec
from fedwright.protocol.errors import BadMessage
from fedwright.protocol.messages import VERSION, Chunk, DataSummary, Envelope, Gone, Message, Pool, Returns
from helpers.message_strategies import of_type

KINDS = get_args(Message)
MESSAGES = st.one_of([of_type(kind) for kind in KINDS])


def pack(message: Any) -> bytes:
    return codec.encode(message, sender="pi-1", boot="b1", message_id="m1")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    message = data.draw(of_type(kind))

    envelope = codec.decode(pack(message))

    assert envelope.body == message
    assert type(envelope.body) is kind
    assert (envelope.id, envelope.sender, envelope.boot, envelope.version) == ("m1", "pi-1", "b1", VERSION)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 300_000])
def test_a_chunk_in_two_parts_is_the_same_message(size: int) -> None:
    chunk = Chunk("0" * 64, 7, memoryview(bytes(size)))

    head, tail = codec.encode_parts(chunk, sender="pi-1", boot="b1")

    assert tail is chunk.data
    assert codec.decode(head + tail).body == chunk


def test_other_messages_have_one_part() -> None:
    head, tail = codec.encode_parts(Gone(), sender="pi-1", boot="b1")

    assert codec.decode(head).body == Gone()
    assert tail == b""


def test_the_data_of_a_chunk_are_not_copied() -> None:
    message = memoryview(bytearray(pack(Chunk("0" * 64, 7, memoryview(b"data")))))

    chunk = codec.decode(message).body
    message[-4:] = b"DATA"

    assert isinstance(chunk, Chunk)
    assert bytes(chunk.data) == b"DATA"


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        codec.decode(data)


@given(MESSAGES, st.data())
def test_flipped_bits_are_refused_or_another_message(message: Any, data: st.DataObject) -> None:
    blob = bytearray(pack(message))
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    with suppress(BadMessage):
        assert isinstance(codec.decode(bytes(blob)), Envelope)


@given(MESSAGES, st.data())
def test_a_cut_message_is_refused(message: Any, data: st.DataObject) -> None:
    blob = pack(message)

    with pytest.raises(BadMessage):
        codec.decode(blob[: data.draw(st.integers(0, len(blob) - 1))])


@given(MESSAGES)
def test_fields_of_a_later_release_are_ignored(message: Any) -> None:
    record = msgspec.msgpack.decode(pack(message))
    record["body"]["from_the_future"] = [1, {"a": None}]
    record["too"] = 1

    assert codec.decode(msgspec.msgpack.encode(record)).body == message


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["version"], 2, "version 2 but this side speaks 1"),
        (["version"], "1", "version"),
        (["sender"], "a/b", r"sender"),
        (["id"], "", r"id"),
        (["body", "type"], "bomb", "bomb"),
        (["body", "type"], "ack", "of"),
        (["sent_s"], None, "sent_s"),
    ],
    ids=["version", "version type", "sender", "id", "tag", "other tag", "time"],
)
def test_errors_name_the_field(path: list[str], value: object, says: str) -> None:
    record = msgspec.msgpack.decode(pack(Gone()))
    place = record["body"] if len(path) > 1 else record
    place[path[-1]] = value

    with pytest.raises(BadMessage, match=says):
        codec.decode(msgspec.msgpack.encode(record))


def test_oversized_messages_are_refused_unread() -> None:
    with pytest.raises(BadMessage, match="over the limit"):
        codec.decode(bytes(codec.MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize("start", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_announced_sizes_are_not_believed(start: bytes) -> None:
    with pytest.raises(BadMessage):
        codec.decode(start + bytes(100))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadMessage):
        codec.decode(b"\x81\xa7version" + b"\x91" * 100_000)
    with pytest.raises(BadMessage):
        codec.decode(b"\x82\xa7version\x01\xa1x" + b"\x91" * 100_000)


def test_a_report_of_an_older_agent_has_no_names_and_no_type() -> None:
    summary = {"samples": 4, "holdout": 1, "input_shape": [2], "classes": 3, "class_counts": [1, 2, 1]}
    found = msgspec.convert(summary, DataSummary)
    assert (found.class_names, found.input_dtype, found.number_descriptor) == (None, "", None)


@pytest.mark.parametrize("names", [[""], ["x" * 201], ["x"] * 10_001], ids=["empty", "long", "many"])
def test_names_of_classes_have_limits(names: list[str]) -> None:
    summary = {"samples": 4, "holdout": 1, "input_shape": [2], "classes": 3, "class_names": names}
    with pytest.raises(msgspec.ValidationError, match="class_names"):
        msgspec.convert(summary, DataSummary)


def test_renamed_fields_keep_their_names_on_the_wire() -> None:
    returns, pool = Returns(class_means=True), Pool("k", "e-1", 2, class_means=True)

    assert msgspec.to_builtins(returns)["prototypes"] is True
    assert msgspec.to_builtins(pool)["features"] is True
