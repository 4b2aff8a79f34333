"""A checkpoint of training every few seconds, so that a power cut costs seconds and not the task."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.protocol.errors import BadBlob
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.tensor_header import metadata

if TYPE_CHECKING:
    from fedwright.device_runtime.train.base import Tensors

log = logging.getLogger(__name__)

EVERY_S = 5.0


@dataclass(frozen=True)
class Saved:
    """Training of one task after `step` steps."""

    step: int
    loss_first: float
    slots: "Tensors"


class Checkpoint:
    """One file for the task in hand; a newer one replaces it."""

    def __init__(self, path: Path, *, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._every_s = every_s
        self._clock = clock
        self._saved_s = clock()

    def due(self) -> bool:
        """Whether it is time for the next one."""
        return self._clock() - self._saved_s >= self._every_s

    def save(self, task: str, step: int, loss_first: float, slots: "Tensors") -> None:
        """Replace the checkpoint; with a full disk the older one stays."""
        from fedwright.protocol import tensors

        note = {"task": task, "step": str(step), "loss_first": repr(loss_first)}
        self._saved_s = self._clock()
        try:
            replace_file(self._path, tensors.save(slots, note))
        except OSError as err:
            log.warning("no checkpoint can be written (%s); free some space at %s", err.strerror, self._path.parent)

    def load(self, task: str) -> Saved | None:
        """The checkpoint if it is of this task and readable; the clock for the next one starts anew."""
        self._saved_s = self._clock()
        if not self._path.exists():
            return None
        from fedwright.protocol import tensors

        try:
            note = metadata(self._path)
            if note.get("task") != task:
                return None
            return Saved(int(note["step"]), float(note["loss_first"]), tensors.load(self._path))
        except (BadBlob, KeyError, ValueError):
            # Losing it costs the seconds it would have saved; the task starts from its first step.
            return None

    def step(self, task: str) -> int:
        """How many steps of this task are saved."""
        try:
            note = metadata(self._path)
            return int(note["step"]) if note.get("task") == task else 0
        except (BadBlob, KeyError, ValueError):
            return 0

    def clear(self) -> None:
        """The task is over."""
        self._path.unlink(missing_ok=True)
