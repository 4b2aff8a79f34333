"""What has happened in a run, put together from its audit log: rounds, tasks, devices and orders.

The log is durable and goes on where it stopped, so that the history of a run which was killed and resumed is whole.
It is read from where the last look ended; nothing here touches the run.
"""

import os
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.rounds.audit import AUDIT

# Of older rounds the figures stay, not what each device did.
DETAILED_ROUNDS = 200
NEWS = 500
DEVICE_LINES = 50
ENDINGS = ("accepted", "refused", "rejected", "late")


@dataclass(slots=True)
class TaskHistory:
    """One task of a device: from when to when, how it ended, what it was expected to take and what it took."""

    device: str
    sent_s: float
    ended_s: float | None = None
    outcome: str = ""
    detail: str = ""
    stats: dict[str, Any] = field(default_factory=dict)
    offer: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """Of the model that was sent, on the device's own held-out data."""
        right, of = self.stats.get("correct_before"), self.stats.get("holdout")
        return right / of if of and right is not None else None


@dataclass(slots=True)
class RoundHistory:
    """A round, or the measurement after it."""

    number: int
    evaluation: bool = False
    began_s: float = 0.0
    closed_s: float | None = None
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, TaskHistory] = field(default_factory=dict)
    _figures: dict[str, float] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """What the curves of a run show of it: metrics, seconds, and how the worst devices fare."""
        return self._figures or self._made_figures()

    def close(self, closed_s: float, seconds: float, metrics: dict[str, float]) -> None:
        """The method has advanced; the figures stay when what each device did is forgotten."""
        self.closed_s, self.seconds, self.metrics = closed_s, seconds, metrics
        self._figures = self._made_figures()

    def _made_figures(self) -> dict[str, float]:
        found = {**self.metrics, "seconds": self.seconds}
        accuracies = sorted(task.accuracy for task in self.tasks.values() if task.accuracy is not None)
        if accuracies:
            found["accuracy_mean"] = sum(accuracies) / len(accuracies)
            found["accuracy_worst"] = accuracies[0]
            found["accuracy_tenth"] = accuracies[(len(accuracies) - 1) // 10]
        peaks = [task.stats.get("peak_rss_bytes", 0) for task in self.tasks.values()]
        if any(peaks):
            found["peak_rss_bytes"] = float(max(peaks))
        return found


@dataclass(slots=True)
class DeviceHistory:
    """A device as the run knows it."""

    device: str
    state: str = "idle"
    seen_s: float = 0.0
    detail: str = ""
    samples: int = 0
    agent: str = ""
    free_bytes: int = 0
    trains: bool = True
    board: dict[str, Any] = field(default_factory=dict)
    link: dict[str, float] = field(default_factory=dict)
    round_s: float | None = None
    round_bytes: int | None = None
    offer: dict[str, Any] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    accuracy: float | None = None
    updates: int = 0
    failures: int = 0
    lines: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=DEVICE_LINES))


@dataclass
class RunHistory:
    """A run from its birth until now. lives: when processes began to work on it, and when they ended, if they did.

    orders: what people have ordered of it that is in force: paused, rounds, sample_ratio, end, taken_out.
    counts: how many lines of each kind the log has.
    """

    name: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    lives: list[list[float | None]] = field(default_factory=list)
    state: str = "new"
    rounds: dict[int, RoundHistory] = field(default_factory=dict)
    evaluations: dict[int, RoundHistory] = field(default_factory=dict)
    devices: dict[str, DeviceHistory] = field(default_factory=dict)
    news: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=NEWS))
    orders: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    version: int = 0

    @property
    def rounds_done(self) -> int:
        """The last round that was closed."""
        return max((number for number, one in self.rounds.items() if one.closed_s is not None), default=0)

    @property
    def latest(self) -> RoundHistory | None:
        """The stage that was planned last."""
        stages = [*self.rounds.values(), *self.evaluations.values()]
        return max(stages, key=lambda one: (one.number, one.evaluation), default=None)

    def take(self, entry: dict[str, Any]) -> None:
        """Take a line of the log."""
        what, when = str(entry.get("what", "")), float(entry.get("time", 0.0))
        self.version += 1
        self.counts[what] += 1
        if what == "began":
            self._begin(entry, when)
        elif what == "ended":
            self._end(entry, when)
        elif what == "sent":
            self._send(entry, when)
        elif what in ENDINGS:
            self._answer(entry, when, what)
        elif what == "round closed":
            self._close(entry, when)
        elif what == "rolled back":
            self._roll_back(int(entry.get("to", 0)))
        elif what == "ordered":
            self._obey(entry)
        elif entry.get("device"):
            self._fare(entry, when, what)
        self._tell(entry, when, what)

    def _tell(self, entry: dict[str, Any], when: float, what: str) -> None:
        """Keep the line for people; what is sent to a whole fleet is told by the rounds."""
        kept = ("device", "round", "detail", "evaluation", "samples", "how", "by", "order")
        line = {"time": when, "what": what, **{name: entry[name] for name in kept if entry.get(name)}}
        if what != "sent":
            self.news.append(line)
        device = self.devices.get(str(entry.get("device", "")))
        if device is not None:
            device.lines.append(line)

    def _begin(self, entry: dict[str, Any], when: float) -> None:
        self.about |= entry.get("about") or {}
        self.name = str(self.about.get("run", self.name))
        self.lives.append([when, None])
        self.state = "running"
        for device in self.devices.values():
            # A server that begins knows of nobody yet.
            device.state = "away" if device.state not in ("turned away", "revoked", "taken out") else device.state

    def _end(self, entry: dict[str, Any], when: float) -> None:
        if self.lives:
            self.lives[-1][1] = when
        self.state = str(entry.get("how", "stopped"))

    def _send(self, entry: dict[str, Any], when: float) -> None:
        number = int(entry.get("round", 0))
        stages = self.evaluations if entry.get("evaluation") else self.rounds
        if number not in stages:
            stages[number] = RoundHistory(number, bool(entry.get("evaluation")), when)
        stage, offers = stages[number], entry.get("offers") or {}
        for device in entry.get("to") or ():
            offer = offers.get(device) or {}
            known = stage.tasks.get(device)
            if known is None or known.outcome:
                stage.tasks[device] = TaskHistory(device, when, offer=offer)
            member = self._device(device)
            member.state, member.detail = ("measuring" if stage.evaluation else "training"), ""
            member.offer = offer or member.offer
        old = stages.get(number - DETAILED_ROUNDS)
        if old is not None:
            old.tasks.clear()

    def _answer(self, entry: dict[str, Any], when: float, what: str) -> None:
        number, device = int(entry.get("round", 0)), str(entry.get("device", ""))
        stages = self.evaluations if entry.get("evaluation") else self.rounds
        stage = stages.setdefault(number, RoundHistory(number, bool(entry.get("evaluation")), when))
        task = stage.tasks.setdefault(device, TaskHistory(device, stage.began_s))
        task.ended_s, task.outcome, task.detail = when, what, str(entry.get("detail", ""))
        task.stats, task.spans = entry.get("stats") or {}, entry.get("spans") or {}
        member = self._device(device)
        member.seen_s = when if what != "late" else member.seen_s
        member.state, member.detail = ("idle" if what == "accepted" else what), task.detail
        if what != "accepted":
            member.failures += 1
            return
        member.updates += 1
        member.stats = task.stats
        member.accuracy = member.accuracy if task.accuracy is None else task.accuracy

    def _close(self, entry: dict[str, Any], when: float) -> None:
        number = int(entry.get("round", 0))
        stage = self.rounds.setdefault(number, RoundHistory(number, False, when))
        found = entry.get("metrics") or {}
        metrics = {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
        stage.close(when, float(entry.get("seconds", 0.0)), metrics)

    def _obey(self, entry: dict[str, Any]) -> None:
        """Take what an order has brought about."""
        force = entry.get("force") or {}
        self.orders = force
        self.about |= {name: force[name] for name in ("rounds", "sample_ratio") if force.get(name) is not None}
        out = set(force.get("taken_out") or ())
        for device in out:
            self._device(device).state = "taken out"
        for device in self.devices.values():
            if device.state == "taken out" and device.device not in out:
                device.state, device.detail = "away", ""

    def _roll_back(self, number: int) -> None:
        self.rounds = {one: stage for one, stage in self.rounds.items() if one <= number}
        self.evaluations = {one: stage for one, stage in self.evaluations.items() if one <= number}

    def _fare(self, entry: dict[str, Any], when: float, what: str) -> None:
        """What became of a device beside its tasks."""
        member = self._device(str(entry["device"]))
        if what == "joined":
            member.seen_s, member.state, member.detail = when, self._at(member), ""
            for name in ("samples", "agent", "free_bytes", "trains", "board", "link", "round_s", "round_bytes"):
                if name in entry:
                    setattr(member, name, entry[name])
        elif what == "measured":
            member.seen_s, member.link = when, entry.get("link") or member.link
        elif what == "lost":
            member.state, member.seen_s = "silent", when
        elif what in ("turned away", "revoked", "taken out"):
            member.state, member.detail = what, str(entry.get("detail", ""))
        elif what == "offered less":
            member.state, member.detail = "training", str(entry.get("detail", ""))
            stage = self.rounds.get(int(entry.get("round", 0)))
            if stage is not None and not entry.get("evaluation"):
                stage.tasks[member.device] = TaskHistory(member.device, when, offer=member.offer)

    def _at(self, member: DeviceHistory) -> str:
        """What a device that comes back is at."""
        stage = self.latest
        task = None if stage is None or stage.closed_s is not None else stage.tasks.get(member.device)
        if stage is None or task is None or task.outcome:
            return "idle"
        return "measuring" if stage.evaluation else "training"

    def _device(self, device: str) -> DeviceHistory:
        if device not in self.devices:
            self.devices[device] = DeviceHistory(device)
        return self.devices[device]


class HistoryReader:
    """Follows the log of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = RunHistory(name=folder.name)
        self._at = 0
        self._inode = 0

    def look(self) -> bool:
        """Take what has been written since the last look; whether there was anything."""
        before = self.history.version
        try:
            with (self.folder / AUDIT).open("rb") as file:
                known = file.fileno()
                inode, size = _identity(known)
                if inode != self._inode or size < self._at:
                    # Another run has this folder now.
                    self._inode, self._at, self.history = inode, 0, RunHistory(name=self.folder.name)
                    before = -1
                file.seek(self._at)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._at += len(line)
                    self._take(line)
        except FileNotFoundError:
            return False
        return self.history.version != before

    def _take(self, line: bytes) -> None:
        try:
            self.history.take(msgspec.json.decode(line, type=dict[str, Any]))
        except (*UNREADABLE, TypeError, ValueError, AttributeError):
            # A damaged line says nothing; `server audit --verify` finds it.
            return


def _identity(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_ino, found.st_size


def read_history(folder: Path) -> RunHistory:
    """All that has happened in the run of a folder."""
    reader = HistoryReader(folder)
    reader.look()
    return reader.history


def runs_below(parent: Path) -> Iterator[Path]:
    """Folders of runs: this one itself, or those in it."""
    if (parent / AUDIT).is_file():
        yield parent
        return
    yield from sorted(path.parent for path in parent.glob(f"*/{AUDIT}"))
