"""The trainer of the last task, kept for the next round: making a session costs more than a small round."""

from collections.abc import Callable

from fedwright.device_runtime import facts
from fedwright.device_runtime.train.base import Trainer
from fedwright.protocol.artifact import Manifest
from fedwright.protocol.predictor import step_bytes

# A larger model's memory is given back between rounds; others on the board may need it.
KEEP_BYTES = 64 * 1024 * 1024


class TrainerCache:
    """At most one trainer, by the blob of its artifact and the largest batch it was checked for."""

    def __init__(self, free_bytes: Callable[[], int] = facts.free_bytes) -> None:
        self._free_bytes = free_bytes
        self._key = ""
        self._batch = 0
        self._manifest: Manifest | None = None
        self._trainer: Trainer | None = None

    def take(self, key: str, *, batch: int) -> Trainer | None:
        """The trainer of that artifact while there is memory for its steps.

        Any other one is let go before memory is needed for its successor; so is one whose memory others have taken
        since, and its task is checked as if it were new.
        """
        known = self._manifest if self._key == key and batch <= self._batch else None
        if known is None or step_bytes(known, batch) > self._free_bytes():
            self._trainer = None
        return self._trainer

    def put(self, key: str, trainer: Trainer, *, batch: int, manifest: Manifest) -> None:
        """Keep a trainer for the next task if it is small enough."""
        if manifest.fixed_bytes <= KEEP_BYTES:
            self._key, self._batch, self._trainer, self._manifest = key, batch, trainer, manifest
