"""The audit log of a run: one line for everything that was ordered, sent and decided, each sealed by the next.

`audit.jsonl` in the run's folder only grows. Every line holds the SHA-256 of the line before it, so that no line can be
changed, put in or taken out without breaking the chain. That lines are missing at the end is seen by the rounds that
the run has closed, and, line by line, by whoever notes the hash of the last one elsewhere.
"""

import getpass
import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import to_builtins

from fedwright import __version__
from fedwright.protocol.address import mask
from fedwright.protocol.errors import BadMessage, LeaseLost, StorageError
from fedwright.protocol.messages import Report
from fedwright.protocol.predictor import profile_from_json
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.rounds import events

AUDIT = "audit.jsonl"
FIRST = "0" * 64
# A power cut costs at most the lines of so long; a kill costs none.
SYNC_S = 1.0
_BLOCK_BYTES = 64 * 1024
_SYNCED = events.StagePlanned | events.RoundClosed | events.PrivacySpent | events.Ordered


class AuditLog:
    """Appends to the log of a run; a last line that a crash has torn is cut off, and that is noted."""

    def __init__(
        self,
        path: Path,
        *,
        sync: bool = True,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        self._sync, self._keep = sync, keep
        self._clock = clock
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            self._head, end = _last_line(self._file)
            torn_bytes = os.lseek(self._file, 0, os.SEEK_END) - end
            os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
            self._synced_s = clock()
            if torn_bytes:
                self.append("cut", detail=f"{torn_bytes} bytes of a last line that was not whole")
        except BaseException:
            os.close(self._file)
            raise

    def append(self, what: str, **facts: Any) -> None:
        """Write one line; it is on its way to the disk, and there after `SYNC_S` or `flush`."""
        entry = {"time": round(time.time(), 3), "what": what, **facts, "before": self._head}
        line = msgspec.json.encode(entry)
        _write(self._file, line + b"\n")
        self._head = hashlib.sha256(line).hexdigest()
        if self._clock() - self._synced_s >= SYNC_S:
            self.flush()

    def flush(self) -> None:
        """Have on the disk what was written."""
        self._put_down()
        self._keep()

    def _put_down(self) -> None:
        if self._sync:
            os.fsync(self._file)
        self._synced_s = self._clock()

    def close(self) -> None:
        """Let go of the file; what was not flushed is on the disk."""
        try:
            self._put_down()
        finally:
            os.close(self._file)


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _last_line(file: int) -> tuple[str, int]:
    """The hash of the last whole line, and where it ends."""
    size = os.lseek(file, 0, os.SEEK_END)
    tail = b""
    for start in range(size - _BLOCK_BYTES, -_BLOCK_BYTES, -_BLOCK_BYTES):
        begin = max(0, start)
        tail = os.pread(file, min(size, start + _BLOCK_BYTES) - begin, begin) + tail
        end = tail.rfind(b"\n")
        before = tail.rfind(b"\n", 0, max(0, end))
        if end >= 0 and (before >= 0 or begin == 0):
            return hashlib.sha256(tail[before + 1 : end]).hexdigest(), begin + end + 1
    return FIRST, 0


def facts_of(event: events.Event) -> tuple[str, dict[str, Any]] | None:
    """What the log says of an event; None for what nobody has to answer for."""
    if isinstance(event, events.DeviceJoined):
        return "joined", {"device": event.device, **_board(event.report)}
    if isinstance(event, events.DeviceMeasured):
        return "measured", {"device": event.device, "link": _link(event.report)}
    if isinstance(event, events.DeviceLost):
        return "lost", {"device": event.device}
    if isinstance(event, events.DeviceTurnedAway):
        return "turned away", {"device": event.device, "detail": event.reason}
    if isinstance(event, events.LessOffered):
        return "offered less", {**_place(event), "detail": event.detail}
    if isinstance(event, events.UpdateTaken):
        stats = {name: value for name, value in to_builtins(event.stats).items() if value is not None}
        known = {"samples": event.stats.samples, "blob": event.blob, "seconds": round(event.seconds, 3)}
        return "accepted", {**_place(event), **known, "spans": dict(event.spans), "stats": stats}
    if isinstance(event, events.TaskFailed):
        return event.outcome, {**_place(event), "detail": event.detail}
    if isinstance(event, events.StagePlanned):
        sent = {device: list(what) for device, *what in event.sent}
        known = {"to": sent or list(event.devices), "offers": to_builtins(dict(event.offers))}
        return "sent", {"round": event.round, "evaluation": event.evaluation, **known}
    return _round_facts(event)


def _round_facts(event: events.Event) -> tuple[str, dict[str, Any]] | None:
    if isinstance(event, events.RoundClosed):
        return "round closed", {"round": event.round, "metrics": event.metrics, "seconds": round(event.seconds, 3)}
    if isinstance(event, events.PrivacySpent):
        return "privacy", {"round": event.round, **event.facts}
    if isinstance(event, events.Warned):
        return event.fate, {"device": event.device, "detail": event.text}
    return _order(event) if isinstance(event, events.Ordered) else None


def _order(event: events.Ordered) -> tuple[str, dict[str, Any]]:
    """What somebody ordered, who, and what is in force since."""
    known = {"order": event.order, "detail": event.kind, "by": event.by, "force": dict(event.force)}
    return "ordered", {**known, "device": event.device} if event.device else known


def _board(report: Report) -> dict[str, Any]:
    """What is written of a device that joined: the board, and how much data, never what is in it."""
    known = {"samples": report.data.samples, "agent": report.agent, "free_bytes": report.free_bytes}
    budget = {"round_s": report.round_s, "round_bytes": report.round_bytes}
    known |= {name: value for name, value in budget.items() if value is not None}
    return {**known, "trains": report.trains, "board": to_builtins(report.board), "link": _link(report)}


def _link(report: Report) -> dict[str, float]:
    """What the device measured of its way to the broker."""
    try:
        return {} if report.profile is None else profile_from_json(report.profile).link
    except BadMessage:
        return {}


def _place(event: events.LessOffered | events.UpdateTaken | events.TaskFailed) -> dict[str, Any]:
    return {"round": event.round, "evaluation": event.evaluation, "device": event.device}


def orderer() -> dict[str, Any]:
    """Who gives the command that runs now, and how it reads; without passwords."""
    return {
        "by": _user(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "command": mask(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]])),
        "release": __version__,
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that has no name.
        return str(os.getuid())


@dataclass(frozen=True)
class Custody:
    """check: raises LeaseLost when the run, and its log, is another server's. keep: called when lines are on disk."""

    check: Callable[[], None] = lambda: None
    keep: Callable[[], None] = lambda: None


@contextmanager
def audited(
    folder: Path,
    observer: events.Observer,
    *,
    config: str = "",
    about: Mapping[str, Any] | None = None,
    sync: bool = True,
    custody: Custody | None = None,
) -> Iterator[events.Observer]:
    """Inside the block everything that the observer hears goes into the folder's log first.

    config: its text, of which the hash is kept. about: what else to say of a run that begins or goes on.
    custody: where servers elsewhere may have the run one day.
    """
    custody = custody or Custody()
    log, check = AuditLog(folder / AUDIT, sync=sync, keep=custody.keep), custody.check
    ended = "stopped"

    def observe(event: events.Event) -> None:
        found = facts_of(event)
        check()
        if found is not None:
            log.append(found[0], **found[1])
        # Before devices act on it, and before the next round builds on it.
        if isinstance(event, _SYNCED):
            log.flush()
        observer(event)

    try:
        log.append("began", **orderer(), config=hashlib.sha256(config.encode()).hexdigest(), about=dict(about or {}))
        log.flush()
        yield observe
        ended = "complete"
    finally:
        problem = sys.exc_info()[1]
        try:
            if not isinstance(problem, LeaseLost | StorageError):
                check()
                log.append("ended", how=ended, **({} if problem is None else {"detail": f"{type(problem).__name__}"}))
                log.flush()
        finally:
            log.close()


@dataclass(frozen=True)
class AuditCheck:
    """How many lines hold together, the hash and round of the last of them, and where the chain breaks, if it does."""

    lines: int
    head: str
    problem: str = ""
    torn: bool = False
    round: int = 0

    def missing(self, closed: int) -> str:
        """What is wrong with a log that does not know of the round that the run has closed last."""
        if self.problem or self.round >= closed:
            return self.problem
        return f"lines are missing at its end: they tell of {self.round} rounds, and the run has closed {closed}"


def read_audit(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, oldest first; what is no line of a log is left out."""
    with (folder / AUDIT).open("rb") as file:
        for line in file:
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except UNREADABLE:
                continue


def check_audit(folder: Path) -> AuditCheck:
    """Follow the chain of a log from its first line."""
    head, number, latest = FIRST, 0, 0
    with (folder / AUDIT).open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return AuditCheck(number, head, torn=True, round=latest)
            try:
                entry = msgspec.json.decode(line, type=dict[str, Any])
            except UNREADABLE:
                return AuditCheck(number, head, f"line {number + 1} is not readable")
            if entry.get("before") != head:
                return AuditCheck(number, head, f"line {number + 1} does not follow the one before it")
            head, number = hashlib.sha256(line.rstrip(b"\n")).hexdigest(), number + 1
            told = entry.get("round")
            latest = max(latest, told) if isinstance(told, int) else latest
    return AuditCheck(number, head, round=latest)
