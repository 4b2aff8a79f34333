"""What an edge that stands for its devices must not forget: the host's task, their answers, what it made of them."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fedwright.protocol import codec
from fedwright.protocol.messages import Refusal, Task, Update
from fedwright.server_runtime.rounds.store.transaction import transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (one INTEGER PRIMARY KEY CHECK (one = 1), payload BLOB NOT NULL, sent BLOB);
CREATE TABLE IF NOT EXISTS device_answer (device TEXT PRIMARY KEY, answer BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS acknowledgement (number INTEGER PRIMARY KEY, task TEXT NOT NULL, payload BLOB NOT NULL);
"""
# The host's last acknowledgements, for devices that did not hear them.
KEPT_ACKNOWLEDGEMENTS = 20
Answer = Update | Refusal


class ShardStore:
    """One SQLite file with a copy in memory; every `save_*` is on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(_SCHEMA)
        row = self._db.execute("SELECT payload, sent FROM job").fetchone()
        self.payload: bytes = b"" if row is None else row[0]
        self.task: Task | None = _task_in(self.payload)
        self.sent: Answer | None = None if row is None or row[1] is None else _answer_in(row[1])
        found = self._db.execute("SELECT device, answer FROM device_answer")
        self.answers: dict[str, Answer] = {device: _answer_in(packed) for device, packed in found}
        self._acknowledgements = dict(self._db.execute("SELECT task, payload FROM acknowledgement ORDER BY number"))

    def save_task(self, task: Task, payload: bytes) -> None:
        """A task of the host's that all devices get; that before it is over, with its answers."""
        with transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO job VALUES (1, ?, NULL)", (payload,))
            self._db.execute("DELETE FROM device_answer")
        self.task, self.payload, self.sent, self.answers = task, payload, None, {}

    def save_answers(self, answers: Mapping[str, Answer]) -> None:
        """Answers of devices to that task, all in one act."""
        with transaction(self._db):
            rows = [(device, msgspec.msgpack.encode(answer)) for device, answer in answers.items()]
            self._db.executemany("INSERT OR REPLACE INTO device_answer VALUES (?, ?)", rows)
        self.answers.update(answers)

    def save_sent(self, answer: Answer) -> None:
        """What goes to the host for all of them; their own answers are no longer needed."""
        with transaction(self._db):
            self._db.execute("UPDATE job SET sent = ?", (msgspec.msgpack.encode(answer),))
        self.sent = answer

    def save_acknowledgement(self, task: str, payload: bytes) -> None:
        """The host's signed acknowledgement of an answer."""
        with transaction(self._db):
            self._db.execute("INSERT INTO acknowledgement (task, payload) VALUES (?, ?)", (task, payload))
            last = "SELECT number FROM acknowledgement ORDER BY number DESC LIMIT ?"
            self._db.execute(f"DELETE FROM acknowledgement WHERE number NOT IN ({last})", (KEPT_ACKNOWLEDGEMENTS,))
        self._acknowledgements = dict(self._db.execute("SELECT task, payload FROM acknowledgement ORDER BY number"))

    def acknowledgement(self, task: str) -> bytes | None:
        """The host's acknowledgement of the answer to a task."""
        return self._acknowledgements.get(task)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


def _task_in(payload: bytes) -> Task | None:
    body = codec.decode(payload).body if payload else None
    return body if isinstance(body, Task) else None


def _answer_in(packed: bytes) -> Answer:
    answer: Answer = msgspec.msgpack.decode(packed, type=Answer)
    return answer
