"""Bytes that are nested deeper than a decoder follows are unreadable like any others, wherever they are kept."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedwright.device_runtime.store.journal import read_entry
from fedwright.protocol import predictor
from fedwright.protocol.errors import BadMessage, ConfigError, FedwrightError
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.methods.state import MethodState
from fedwright.server_runtime.rounds.audit import AUDIT, check_audit, read_audit
from fedwright.server_runtime.rounds.store.database import DamagedStore
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore

DEPTH = 5000
TEXT = b'{"a":' * DEPTH
MSGPACK = b"\x81\xa5entry" + b"\x81\xa1a" * DEPTH + b"\xc0"


def test_a_journal_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(MSGPACK)

    assert read_entry(tmp_path) is None
    assert (tmp_path / "journal.unreadable").read_bytes() == MSGPACK


def test_a_line_of_an_audit_log_is_named(tmp_path: Path) -> None:
    (tmp_path / AUDIT).write_bytes(TEXT + b"\n")

    assert check_audit(tmp_path).problem == "line 1 is not readable"
    assert list(read_audit(tmp_path)) == []


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda: predictor.profile_from_json(TEXT), BadMessage),
        (lambda: config_from_text("a = " + "[" * DEPTH, where="run.toml"), ConfigError),
        (lambda: MethodState(records={"a": TEXT.decode()}).record("a", dict), FedwrightError),
    ],
    ids=["profile", "config", "state of a method"],
)
def test_the_reader_answers_with_an_error_of_its_own(read: Callable[[], object], error: type[FedwrightError]) -> None:
    with pytest.raises(error):
        read()


def test_a_stored_record_is_a_damaged_store(tmp_path: Path) -> None:
    store = SqliteRoundStore(tmp_path / "rounds.sqlite")
    nest = b"\x81\xa1x" + b"\x81\xa1a" * DEPTH + b"\xc0"
    store._db.act(lambda db: db.change("INSERT INTO run VALUES (1, ?)", (nest,)))

    with pytest.raises(DamagedStore, match="not readable"):
        store.run()
    store.close()
