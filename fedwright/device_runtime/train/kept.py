"""The trainer of the last task, kept for the next round: making a session costs more than a small round."""

from fedwright.device_runtime.train.base import Trainer

# A larger model's memory is given back between rounds; others on the board may need it.
KEEP_BYTES = 64 * 1024 * 1024


class Kept:
    """At most one trainer, by the blob of its artifact and the largest batch it was checked for."""

    def __init__(self) -> None:
        self._key = ""
        self._batch = 0
        self._trainer: Trainer | None = None

    def take(self, key: str, *, batch: int) -> Trainer | None:
        """The trainer of that artifact; any other one is let go before memory is needed for its successor."""
        if self._key == key and batch <= self._batch:
            return self._trainer
        self._trainer = None
        return None

    def put(self, key: str, trainer: Trainer, *, batch: int, fixed_bytes: int) -> None:
        """Keep a trainer for the next task if it is small enough."""
        if fixed_bytes <= KEEP_BYTES:
            self._key, self._batch, self._trainer = key, batch, trainer
