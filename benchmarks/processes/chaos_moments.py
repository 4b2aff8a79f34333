"""Moments at which a process of `bench chaos` waits when it is asked to, so that a kill comes exactly then.

A process marks every moment it reaches in a file of its own, so that a kill at any time can be told where it came.
"""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER, NAME = "FEDWRIGHT_CHAOS_FOLDER", "FEDWRIGHT_CHAOS_NAME"
START = "starting"
# Nobody waits longer than this for a kill that does not come.
HOLD_S = 5.0
POLL_S = 0.002
_MARK_BYTES = 32

SERVER = ("planning", "planned", "update here", "update durable", "absorb", "advance", "closing", "closed")
DEVICE = ("task taken", "fetching", "training", "trained", "uploading", "update sent", "acknowledged")


def _always(this: Any) -> bool:
    del this
    return True


class Moments:
    """The process's own side: says where it is, and waits there when that was asked for."""

    def __init__(self, folder: Path, name: str) -> None:
        self._wanted, self._here = folder / f"{name}.wanted", folder / f"{name}.here"
        self._mark = os.open(folder / f"{name}.mark", os.O_WRONLY)

    @classmethod
    def of_environment(cls) -> "Moments":
        """Those that the bench has named for this process."""
        return cls(Path(os.environ[FOLDER]), os.environ[NAME])

    def reach(self, moment: str) -> None:
        """Mark a moment; return when whoever asked for it has let go, or soon."""
        self._say(moment)
        try:
            if self._wanted.read_text() != moment:
                return
            self._wanted.rename(self._here)
        except FileNotFoundError:
            return
        until_s = time.monotonic() + HOLD_S
        while self._here.exists() and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def before(self, cls: type, method: str, moment: str, *, when: Callable[[Any], bool] = _always) -> None:
        """Let every call of a method begin with this moment, where `when` holds of its object."""
        plain = getattr(cls, method)

        @functools.wraps(plain)
        def marked(this: Any, *given: Any, **named: Any) -> Any:
            if when(this):
                self.reach(moment)
            return plain(this, *given, **named)

        setattr(cls, method, marked)

    def after(self, cls: type, method: str, moment: str, *, when: Callable[[Any], bool] = _always) -> None:
        """Let every call of a method end with this moment, where `when` holds of its object."""
        plain = getattr(cls, method)

        @functools.wraps(plain)
        def marked(this: Any, *given: Any, **named: Any) -> Any:
            found = plain(this, *given, **named)
            if when(this):
                self.reach(moment)
            return found

        setattr(cls, method, marked)

    def _say(self, moment: str) -> None:
        os.pwrite(self._mark, moment.encode().ljust(_MARK_BYTES), 0)


class Watched:
    """The bench's side of one process."""

    def __init__(self, folder: Path, name: str) -> None:
        self._wanted, self._here, self._mark = (folder / f"{name}.{kind}" for kind in ("wanted", "here", "mark"))

    def last(self) -> str:
        """The moment that the process reached last."""
        return self._mark.read_text().strip()

    def wait(self, moment: str, goes_on: Callable[[float], bool], *, wait_s: float) -> bool:
        """Ask the process to stand still at a moment; False when it did not come there while the run went on."""
        draft = self._wanted.with_suffix(".draft")
        draft.write_text(moment)
        draft.rename(self._wanted)
        until_s = time.monotonic() + wait_s
        while not self._here.exists() and time.monotonic() < until_s:
            if not goes_on(POLL_S):
                break
        self._wanted.unlink(missing_ok=True)
        return self._here.exists()

    def forget(self) -> None:
        """Nothing of a process that is gone holds for the one that is started in its place."""
        self.release()
        self._mark.write_text(START)

    def release(self) -> None:
        """Let it go on."""
        self._here.unlink(missing_ok=True)
