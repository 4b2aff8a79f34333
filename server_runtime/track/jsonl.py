"""Figures as plain lines of JSON in track/rounds.jsonl, beside config, ledger and files."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fedwright.server_runtime.track.base import Described

ROUNDS = "rounds.jsonl"


class JsonLines:
    """One line for each round; the last line of a round counts."""

    def __init__(self, described: Described) -> None:
        folder = described.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        (folder / "config.toml").write_text(described.config, encoding="utf-8")
        (folder / "ledger.txt").write_text(described.ledger, encoding="utf-8")
        self._file = (folder / ROUNDS).open("ab")

    def numbers(self, step: int, figures: Mapping[str, float]) -> None:
        """Write a line, whole or not at all as far as readers see."""
        line = {"time": round(time.time(), 3), "round": step, **figures}
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def file(self, path: Path) -> None:
        """Keep a copy, unless it lies here already."""
        target = self._folder / path.name
        if not (target.exists() and target.samefile(path)):
            shutil.copyfile(path, target)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def open_tracker(described: Described) -> JsonLines:
    """A tracker for one run."""
    return JsonLines(described)
