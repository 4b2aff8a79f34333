"""Messages that an earlier release wrote are understood, and what is written now has all that they had."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from fedwright.protocol import codec
from fedwright.protocol.messages import VERSION, Message

RECORDED = {path.stem: json.loads(path.read_text()) for path in Path(__file__).parent.glob("recorded/*.json")}
CASES = [
    pytest.param(bytes.fromhex(payload), id=f"{release} {kind}")
    for release, recorded in RECORDED.items()
    for kind, payload in recorded["messages"].items()
]


def lacking(now: Any, then: Any, *, place: str = "") -> list[str]:
    """Where what is written now lacks, or says otherwise, what was written then."""
    if isinstance(then, dict):
        missing = [f"{place}.{key}" for key in then if key not in now]
        return missing + [w for k in then if k in now for w in lacking(now[k], then[k], place=f"{place}.{k}")]
    if isinstance(then, list) and isinstance(now, list) and len(now) == len(then):
        return [w for i, (a, b) in enumerate(zip(now, then, strict=True)) for w in lacking(a, b, place=f"{place}[{i}]")]
    return [] if now == then else [place]


@pytest.mark.parametrize("payload", CASES)
def test_a_recorded_message_is_understood_and_written_as_then(payload: bytes) -> None:
    envelope = codec.decode(payload)
    again = codec.encode(envelope.body, sender=envelope.sender, boot=envelope.boot, message_id=envelope.id)

    then, now = (msgspec.msgpack.decode(written) for written in (payload, again))
    assert lacking(now["body"], then["body"]) == []
    assert now.keys() >= then.keys()


def test_the_recordings_are_of_this_version_and_whole() -> None:
    assert RECORDED
    assert {recorded["version"] for recorded in RECORDED.values()} == {VERSION}
    kinds = {kind.__struct_config__.tag for kind in get_args(Message)}
    for recorded in RECORDED.values():
        assert len(recorded["messages"]) >= 18
        assert recorded["messages"].keys() <= kinds


@pytest.mark.parametrize(
    ("now", "then", "found"),
    [
        pytest.param({"a": 1, "new": 2}, {"a": 1}, [], id="a new field"),
        pytest.param({"b": 1}, {"a": 1}, [".a"], id="a renamed field"),
        pytest.param({"a": {"b": [1, 3]}}, {"a": {"b": [1, 2]}}, [".a.b[1]"], id="another value inside"),
    ],
)
def test_what_counts_as_lacking(now: Any, then: Any, found: list[str]) -> None:
    assert lacking(now, then) == found
