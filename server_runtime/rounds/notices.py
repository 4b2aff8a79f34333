"""What a person should know of a run: warnings, and devices that were turned away, cut down or shut out.

They go to the observer (the screen), to the log, and into `notices.json` in the run's folder, where
`fedwright server status` finds them while the run goes on and afterwards.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from fedwright.protocol.support.files import replace_file
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.rounds import events

log = logging.getLogger(__name__)

NOTICES = "notices.json"
# Warnings that are logged below here reach whoever watches; the tasks' own fate is told by events.
WARNS = "fedwright.server_runtime"
TOLD_BY_EVENTS = ("fedwright.server_runtime.rounds.task_tracker", __name__)
# The file is written at most so often, so that a large fleet that fails as one does not keep the disk busy.
WRITE_S = 1.0
MOST = 10_000


@dataclass(frozen=True)
class Notice:
    """One thing to know; the same fate of the same device is one notice, with the latest words.

    kind: `warning`, or a device's fate: turned away, revoked, offered less, no update. times: how often it happened.
    """

    kind: str
    text: str
    device: str = ""
    round: int = 0
    times: int = 1
    time: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        """What makes two notices one."""
        return (self.kind, self.text if self.kind == "warning" else self.device)

    def line(self) -> str:
        """For a person."""
        who = f"{self.device}: {self.kind}" if self.kind != "warning" else self.kind
        where = f" in round {self.round}" if self.round else ""
        often = f" ({self.times} times)" if self.times > 1 else ""
        return f"{who}{where}{often}: {self.text}"


def notice_of(event: events.Event) -> Notice | None:
    """What is worth remembering of an event; None for the usual course of things."""
    if isinstance(event, events.DeviceTurnedAway):
        return Notice("turned away", event.reason, event.device)
    if isinstance(event, events.LessOffered):
        return Notice("offered less", event.detail, event.device, event.round)
    if isinstance(event, events.TaskFailed):
        return Notice("no update", event.detail, event.device, event.round)
    if isinstance(event, events.Warned):
        return Notice(event.fate, event.text, event.device)
    return None


class Notices:
    """An observer that logs what happens, remembers what should be known, and passes every event on."""

    def __init__(self, folder: Path, observer: events.Observer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / NOTICES
        self._observer = observer
        self._clock = clock
        self._kept = {notice.key: notice for notice in read_notices(folder)}
        self._written_s = -WRITE_S
        self._dirty = False

    def __call__(self, event: events.Event) -> None:
        """Take an event of the run."""
        _log(event)
        notice = notice_of(event)
        if notice is not None:
            self._forget_answered(event)
            before = self._kept.pop(notice.key, None)
            times = 1 if before is None else before.times + 1
            if len(self._kept) < MOST:
                self._kept[notice.key] = replace(notice, times=times, time=time.time())
            self._dirty = True
        if self._dirty and self._clock() - self._written_s >= WRITE_S:
            self.write()
        self._observer(event)

    def _forget_answered(self, event: events.Event) -> None:
        """A refusal that was answered by a smaller task is told by that one."""
        if isinstance(event, events.LessOffered):
            refused = self._kept.get(("no update", event.device))
            if refused is not None and refused.round == event.round and refused.times == 1:
                del self._kept[refused.key]

    def write(self) -> None:
        """Make durable what is not yet; a full disk does not end a run for this."""
        if not self._dirty:
            return
        try:
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(list(self._kept.values())), indent=1))
        except OSError as err:
            log.error("%s cannot be written (%s); free some space there", self._path, err.strerror)
        self._dirty, self._written_s = False, self._clock()


def read_notices(folder: Path) -> list[Notice]:
    """The notices of the run in a folder, the latest last; none when there is no such file or it is damaged."""
    try:
        return msgspec.json.decode((folder / NOTICES).read_bytes(), type=list[Notice])
    except (OSError, *UNREADABLE):
        return []


@contextmanager
def noticed(folder: Path, observer: events.Observer) -> Iterator[events.Observer]:
    """Inside the block the observer hears of warnings too, and what should be known is kept in the folder."""
    notices = Notices(folder, observer)
    handler, logger = _Warnings(notices), logging.getLogger(WARNS)
    logger.addHandler(handler)
    try:
        yield notices
    finally:
        logger.removeHandler(handler)
        notices.write()


class _Warnings(logging.Handler):
    """Makes events of warnings."""

    def __init__(self, observer: events.Observer) -> None:
        super().__init__(logging.WARNING)
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        if not record.name.startswith(TOLD_BY_EVENTS):
            fate, device = getattr(record, "fate", "warning"), getattr(record, "device", "")
            self._observer(events.Warned(record.getMessage(), device, fate))


def _log(event: events.Event) -> None:
    """One line for each event that is not logged already."""
    known = {"device": getattr(event, "device", None), "round": getattr(event, "round", None)}
    if isinstance(event, events.DeviceJoined):
        log.info("device %s joined with %d samples", event.device, event.report.data.samples, extra=known)
    elif isinstance(event, events.DeviceMeasured):
        log.info("device %s has measured itself", event.device, extra=known)
    elif isinstance(event, events.DeviceLost):
        log.info("device %s lost its connection", event.device, extra=known)
    elif isinstance(event, events.DeviceTurnedAway):
        log.warning("device %s was turned away: %s", event.device, event.reason, extra=known)
    elif isinstance(event, events.LessOffered):
        log.warning("device %s round %d: offered less: %s", event.device, event.round, event.detail, extra=known)
    elif isinstance(event, events.TaskFailed):
        log.warning("device %s round %d: no update: %s", event.device, event.round, event.detail, extra=known)
    elif isinstance(event, events.RoundClosed):
        log.info("round %d closed after %.1f s: %s", event.round, event.seconds, event.metrics, extra=known)
