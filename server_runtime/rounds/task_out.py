"""A task that a device has and has not answered, and where its time went."""

from dataclasses import dataclass

from fedwright.protocol.messages import Stats, Update
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Planned


@dataclass
class TaskOut:
    """since_s: when it was sent. begun_s: when its device first spoke of it. told_s: when that announced its update."""

    planned: Planned
    since_s: float
    begun_s: float | None = None
    told_s: float | None = None

    def begin(self, now_s: float) -> None:
        """The device says that it is at the task."""
        self.begun_s = now_s if self.begun_s is None else self.begun_s

    def tell(self, now_s: float) -> None:
        """The device says that it is done; its tensors may still have to come."""
        self.told_s = now_s if self.told_s is None else self.told_s

    def taken(self, update: Update, now_s: float) -> events.UpdateTaken:
        """What is told of an update that is durable by now."""
        task, stats = self.planned.task, update.stats
        return events.UpdateTaken(
            task.round,
            self.planned.device,
            stats,
            now_s - self.since_s,
            task.evaluation,
            "" if update.tensors is None else update.tensors.sha256,
            self.spans(stats, now_s),
        )

    def spans(self, stats: Stats, now_s: float) -> dict[str, float]:
        """Seconds of waiting, coming down, training and going up; they add up to the time since it was sent.

        unknown: waiting and coming down, of a device that did not speak of the task before it worked on it.
        """
        told_s = now_s if self.told_s is None else self.told_s
        train_s = min(stats.task_s or stats.train_s, max(0.0, told_s - self.since_s))
        before_s = told_s - self.since_s - train_s
        found = {**self._before(before_s), "train": train_s, "up": now_s - told_s}
        return {name: round(seconds, 3) for name, seconds in found.items()}

    def _before(self, before_s: float) -> dict[str, float]:
        """What the time before the work was, as far as the device said so in time."""
        waiting_s = None if self.begun_s is None else max(0.0, self.begun_s - self.since_s)
        if waiting_s is None or waiting_s > before_s:
            return {"unknown": before_s}
        return {"waiting": waiting_s, "down": before_s - waiting_s}
