"""Tracks a run: takes its events, makes each round's figures and has them told."""

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from fedwright.protocol import codec
from fedwright.protocol.address import mask
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.methods import registry
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.audit import AUDIT, facts_of
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.track.base import Described, check_tools
from fedwright.server_runtime.track.thread import Files, Numbers, TrackThread
from fedwright.server_runtime.watch.history import RunHistory, read_history

MEMORY = "tracked.json"
DEVICES = "fleet-costs.json"
# Sums over a round's devices.
SUMS = ("train_s", "cpu_s", "energy_j")


class Memory(msgspec.Struct):
    """What must not be told twice or under another name when a run is resumed."""

    identity: str
    last_round: int = 0


class RunTracker:
    """An observer of a run that has its figures told once the run is this server's, and passes every event on."""

    def __init__(self, config: RunConfig, text: str, run_folder: Path, observer: events.Observer) -> None:
        section = config.track
        self._config = config
        self._text = text
        self._run_folder = run_folder
        self._folder = Path(section.folder) / config.run.name if section.folder else run_folder / "track"
        self._observer = observer
        self._thread: TrackThread | None = None
        self._history = RunHistory()
        self._sums: dict[str, float] = {}

    def begin(self) -> None:
        """Open the tools: a server that stands by has nothing to tell, and must not write where another one does."""
        if not self._config.track.to:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        memory = _memory(self._folder, known=(self._run_folder / AUDIT).exists())

        def remember(message: Numbers | Files) -> None:
            if isinstance(message, Numbers) and message.step > memory.last_round:
                memory.last_round = message.step
            replace_file(self._folder / MEMORY, msgspec.json.encode(memory))

        self._thread = TrackThread(self._config.track.to, self._described(memory.identity), after=remember)
        self._catch_up(memory)

    def _described(self, identity: str) -> Described:
        config = self._config
        settings = flat(msgspec.to_builtins(asdict(config), enc_hook=str))
        ledger = _ledger(config.method.name)
        return Described(
            config.run.name, identity, self._folder, config.track.project, mask(self._text), settings, ledger
        )

    def close(self) -> None:
        """Let what waits be told."""
        if self._thread is not None:
            self._thread.close()

    def observe(self, event: events.Event) -> None:
        """Take an event of the run."""
        if self._thread is not None:
            self._take(event)
        self._observer(event)

    def _take(self, event: events.Event) -> None:
        found = facts_of(event)
        if found is not None:
            self._history.take({"what": found[0], "time": 0.0, **msgspec.to_builtins(found[1])})
        if isinstance(event, events.UpdateTaken) and not event.evaluation:
            self._add(event)
        elif isinstance(event, events.RoundClosed):
            self._tell(event.round, self._history.rounds[event.round].figures() | self._sums)
            self._sums = {}

    def _add(self, event: events.UpdateTaken) -> None:
        for name in SUMS:
            self._sums[name] = self._sums.get(name, 0.0) + (getattr(event.stats, name) or 0.0)

    def _tell(self, number: int, figures: Mapping[str, float]) -> None:
        if self._thread is None:
            return
        self._thread.tell(Numbers(number, {name: value for name, value in figures.items() if math.isfinite(value)}))

    def _catch_up(self, memory: Memory) -> None:
        """Tell of rounds that a server closed and was killed before it told."""
        history = read_history(self._run_folder)
        # After a rollback rounds are told again.
        memory.last_round = last = min(memory.last_round, history.rounds_done)
        for number, stage in sorted(history.rounds.items()):
            if number > last and stage.closed_s is not None:
                self._tell(number, stage.figures())

    def measured(self, number: int, part: str, figures: Mapping[str, float]) -> None:
        """Take what the models of all devices came to on a part of their data."""
        if self._thread is not None:
            name = part.replace(" ", "_")
            self._thread.tell(Numbers(number, {f"{name}/{key}": value for key, value in figures.items()}))

    def finish(self, model: Path | None, devices: Mapping[str, DeviceRecord]) -> None:
        """Take what the run leaves: its model, and what each device did and cost."""
        if self._thread is None:
            return
        kept = self._folder / DEVICES
        replace_file(kept, msgspec.json.format(msgspec.json.encode([asdict(one) for one in devices.values()])))
        self._thread.tell(Files([kept, *([] if model is None else [model])]))


@contextmanager
def tracked(config: RunConfig, text: str, run_folder: Path, observer: events.Observer) -> Iterator[RunTracker]:
    """Inside the block the tools that the config names are told how the run does, from `begin` on."""
    check_tools(config.track.to)
    tracker = RunTracker(config, text, run_folder, observer)
    try:
        yield tracker
    finally:
        tracker.close()


def _memory(folder: Path, *, known: bool) -> Memory:
    """What was told of this run before; a run that begins anew in the same place is another one."""
    try:
        if known:
            return msgspec.json.decode((folder / MEMORY).read_bytes(), type=Memory)
    except (OSError, *UNREADABLE):
        pass
    return Memory(codec.new_id())


def _ledger(method: str) -> str:
    """What a method has of its paper, leaves out and does otherwise."""
    module = registry.find(method).method.__module__
    return (sys.modules[module].__doc__ or "").strip()


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their full names, as tools show them."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = value
    return found
