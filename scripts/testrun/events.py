"""What a group's process tells: one line of JSON for each step."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """A step: collect, planned, start, phase, finish or end; only what belongs to it is set."""

    kind: str
    test: str = ""
    file: str = ""
    outcome: str = ""
    reason: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    stderr_bytes: int = 0


def encode(event: Event) -> bytes:
    """One line."""
    return json.dumps(asdict(event)).encode() + b"\n"


class EventFile:
    """Reads a file of events while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self.events: list[Event] = []

    def update(self) -> bool:
        """Read on up to the last whole line; whether there was anything new."""
        if not self._path.exists():
            return False
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        new = [Event(**json.loads(line)) for line in whole.splitlines()]
        self.events += new
        return bool(new)
