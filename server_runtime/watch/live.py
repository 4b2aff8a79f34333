"""What devices are at in this moment, in a small file beside the run: for pages and tables in other processes.

Written at most once a second, never synced: after a crash it is out of date and nobody misses it. What must last is in
the audit log.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fedwright.protocol.errors import LeaseLost
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.server_runtime.rounds import events

log = logging.getLogger(__name__)

LIVE = "live.json"
WRITE_S = 1.0


class Live:
    """An observer that keeps the file, and passes every event on."""

    def __init__(self, folder: Path, observer: events.Observer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / LIVE
        self._observer = observer
        self._clock = clock
        self._devices: dict[str, dict[str, Any]] = {}
        self._waiting: dict[str, Any] = {}
        self._written_s = -WRITE_S
        self._warned = False

    def __call__(self, event: events.Event) -> None:
        """Take an event of the run."""
        if isinstance(event, events.DeviceStatus):
            self._devices[event.device] = {"time": time.time(), **msgspec.to_builtins(event.status)}
        elif isinstance(event, events.UpdateTaken | events.TaskFailed | events.DeviceLost | events.DeviceTurnedAway):
            self._devices.pop(event.device, None)
        elif isinstance(event, events.Waiting):
            self._waiting = {"needed": event.needed, "present": len(event.present)}
        elif isinstance(event, events.StagePlanned):
            self._waiting = {}
        if self._clock() - self._written_s >= WRITE_S:
            self.write()
        self._observer(event)

    def write(self) -> None:
        """Put down what is known now; a full disk does not end a run for this."""
        self._written_s = self._clock()
        found = {"time": time.time(), "process": os.getpid(), "waiting": self._waiting, "devices": self._devices}
        draft = self._path.with_suffix(".part")
        try:
            draft.write_bytes(msgspec.json.encode(found))
            draft.replace(self._path)
        except OSError as err:
            log.log(logging.DEBUG if self._warned else logging.ERROR, "%s: %s", self._path, err.strerror)
            self._warned = True


@contextmanager
def shown_live(folder: Path, observer: events.Observer) -> Iterator[events.Observer]:
    """Inside the block the folder says what devices are at."""
    live = Live(folder, observer)
    live.write()
    ours = True
    try:
        yield live
    except LeaseLost:
        ours = False
        raise
    finally:
        if ours:
            (folder / LIVE).unlink(missing_ok=True)


def read_live(folder: Path) -> dict[str, Any]:
    """What the devices of a run are at; nothing when no server is at work on it, or the file is damaged."""
    try:
        return msgspec.json.decode((folder / LIVE).read_bytes(), type=dict[str, Any])
    except (OSError, *UNREADABLE):
        return {}


def is_served(folder: Path) -> bool:
    """Whether a server is at work on the run of a folder."""
    try:
        with (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
