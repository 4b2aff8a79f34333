"""The ledger of what a run has told: a file that only grows, written before anything is sent that it speaks of.

`privacy-ledger.jsonl` in the run's folder. A round that is done again after a kill is the same round and counts once;
one that is done again after a rollback counts again, because what it told the first time is told.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from fedwright.protocol.errors import StorageError
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.rounds.privacy.accounting import Release

LEDGER = "privacy-ledger.jsonl"

Told = tuple[int, int, int]
"""What is told once: rollbacks, round, and how often devices did it once more."""


class Entry(Struct, frozen=True, omit_defaults=True):
    """One line: what a round tells, or (`next_clip`) what the clip is after it.

    devices: those who might be in it, so that it may tell of them; None: the same as in the line before.
    each: what a device tells of its examples, where it is examples that are private: noise, sample ratio and steps.
    empty_chance: that the lot fell on nobody and was drawn again, which counts towards δ.
    repeat: how often devices did their tasks of the round once more before, which tells anew.
    """

    round: int
    rollbacks: int = 0
    noise_multiplier: float = 0.0
    sample_ratio: float = 1.0
    clip: float = 0.0
    devices: list[str] | None = None
    each: dict[str, tuple[float, float, int]] = {}
    next_clip: float | None = None
    empty_chance: float = 0.0
    repeat: int = 0


class Ledger:
    """Appends entries that survive a power cut; a torn last line is cut off, for nothing was sent on its word."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries = list(read_entries(path))
        self._cut_torn_end()

    def append(self, entry: Entry) -> None:
        """Have one more line on the disk before this returns."""
        devices = entry.devices if entry.devices != self._last_devices() else None
        entry = msgspec.structs.replace(entry, devices=devices)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.entries.append(entry)

    def rounds(self) -> dict[Told, list[Entry]]:
        """All that was told."""
        found: dict[Told, list[Entry]] = {}
        for entry in self.entries:
            if entry.next_clip is None:
                found.setdefault((entry.rollbacks, entry.round, entry.repeat), []).append(entry)
        return found

    def clip_after(self, number: int) -> float | None:
        """What the clip was after a round; None where it never moved."""
        return next(
            (e.next_clip for e in reversed(self.entries) if e.next_clip is not None and e.round == number), None
        )

    def releases(self) -> list[Release]:
        """What the run as a whole has told of its devices."""
        first = [entries[0] for entries in self.rounds().values()]
        return [Release(entry.noise_multiplier, entry.sample_ratio) for entry in first if entry.noise_multiplier]

    def empty_chance(self) -> float:
        """The chance that any lot was drawn again, at most."""
        return sum(max(entry.empty_chance for entry in entries) for entries in self.rounds().values())

    def by_device(self) -> dict[str, list[Release]]:
        """What may have told of each device, or of each device's examples."""
        found: dict[str, list[Release]] = {}
        for entries in self._with_devices().values():
            whole: dict[str, Release] = {}
            for entry, devices in entries:
                whole |= {device: Release(*told) for device, told in entry.each.items()}
                if entry.noise_multiplier:
                    whole |= dict.fromkeys(devices, Release(entry.noise_multiplier, entry.sample_ratio))
            for device, release in whole.items():
                found.setdefault(device, []).append(release)
        return found

    def _with_devices(self) -> dict[Told, list[tuple[Entry, list[str]]]]:
        found: dict[Told, list[tuple[Entry, list[str]]]] = {}
        devices: list[str] = []
        for entry in self.entries:
            devices = devices if entry.devices is None else entry.devices
            if entry.next_clip is None:
                found.setdefault((entry.rollbacks, entry.round, entry.repeat), []).append((entry, devices))
        return found

    def _last_devices(self) -> list[str] | None:
        return next((entry.devices for entry in reversed(self.entries) if entry.devices is not None), None)

    def _cut_torn_end(self) -> None:
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self._path, whole)


def read_entries(path: Path) -> Iterator[Entry]:
    """The whole lines of a ledger, oldest first; none where there is no file."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            yield msgspec.json.decode(line, type=Entry)
        except UNREADABLE as err:
            raise StorageError(f"{path} has a line that is no entry ({err}); put a copy of the file back") from err
