"""The owner's policy at work in an agent: asked before each task, with the traffic of the day so far."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fedwright.device_runtime.policy import Policy, minute_of_day
from fedwright.device_runtime.private_budget import ORDERS, epsilon_of, told_by
from fedwright.protocol.errors import PolicyRefused
from fedwright.protocol.messages import Task
from fedwright.protocol.support.files import replace_file, write_private

MB = 1e6
# What an entry of a change takes in each form, with its scales, as a share of one of float32.
SHARES = {"float32": 1.0, "bf16": 0.5, "int8": 0.26, "int4": 0.15}


class _Day(msgspec.Struct):
    """What was sent and received on a day, by this and earlier lives of the agent."""

    date: str
    used_bytes: int = 0


class _PrivateTasks(msgspec.Struct):
    """Tasks that were begun with noise, in all the device's time."""

    tasks: list[str] = []
    # What they told of one sample, by private_budget.ORDERS.
    spent: list[float] = []


class OwnerRules:
    """A policy, and what of it is used up; `folder` keeps that over restarts."""

    def __init__(self, policy: Policy, folder: Path, *, today: Callable[[], str] | None = None) -> None:
        self.policy = policy
        self._file, self._private_file = folder / "traffic.json", folder / "private-tasks.json"
        self._today = today or (lambda: time.strftime("%Y-%m-%d"))
        self._noted_bytes = 0

    def check(self, task: Task, link_bytes: int, *, missing_bytes: int, samples: int, taken: str) -> None:
        """Raise PolicyRefused for a task that must not be begun.

        missing_bytes: what would have to be fetched. samples: of the device. taken: of the time that it was taken in
        hand: a task that is sent anew, when others came between, is done anew with other noise, and counts again.
        """
        self.policy.check(task, minute_of_day())
        self._count_private(task, samples, taken)
        if self.policy.mb_per_day is None:
            return
        used = self.note(link_bytes)
        need = missing_bytes + _update_bytes(task)
        if used + need > self.policy.mb_per_day * MB:
            raise PolicyRefused(
                "mb_per_day",
                f"sends and fetches {self.policy.mb_per_day:g} MB a day; {used / MB:.1f} MB are used and the task "
                f"takes {need / MB:.1f} MB",
            )

    def _count_private(self, task: Task, samples: int, taken: str) -> None:
        """Write down that this task will tell a little of the data, up to as much as the owner lets it."""
        most, budget = self.policy.private_tasks, self.policy.private_epsilon
        if (most is None and budget is None) or not task.is_private:
            return
        try:
            done = msgspec.json.decode(self._private_file.read_bytes(), type=_PrivateTasks)
        except FileNotFoundError:
            done = _PrivateTasks()
        except (OSError, msgspec.MsgspecError) as err:
            # What was told is told, also if nobody can read here how much it was.
            text = f"cannot read {self._private_file} ({err}); put a copy back, or remove it to begin at 0 again"
            raise PolicyRefused("private_tasks", text) from err
        if taken in done.tasks:
            return
        if most is not None and len(done.tasks) >= most:
            raise PolicyRefused("private_tasks", f"has done {most} tasks with noise, and does no more in all its time")
        before = done.spent or [0.0] * len(ORDERS)
        spent = [one + more for one, more in zip(before, told_by(task, samples), strict=True)]
        if budget is not None and epsilon_of(spent) > budget:
            text = f"tells no more of a sample than epsilon {budget:g}; {epsilon_of(before):.3g} is told"
            raise PolicyRefused("private_epsilon", f"{text}, and with this task it would be {epsilon_of(spent):.3g}")
        self._private_file.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._private_file, msgspec.json.encode(_PrivateTasks([*done.tasks, taken], spent)))

    def may_work(self) -> bool:
        """Whether now is among the hours that the owner lets the device work."""
        return self.policy.may_work(minute_of_day())

    def note(self, link_bytes: int) -> int:
        """Add what went over the link since last time; what the day has used."""
        day = self._read()
        day.used_bytes += max(0, link_bytes - self._noted_bytes)
        self._noted_bytes = link_bytes
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, msgspec.json.encode(day))
        return day.used_bytes

    def _read(self) -> _Day:
        today = self._today()
        try:
            day = msgspec.json.decode(self._file.read_bytes(), type=_Day)
        except (OSError, msgspec.MsgspecError):
            return _Day(today)
        return day if day.date == today else _Day(today)


def _update_bytes(task: Task) -> int:
    """About what an update takes: as much as the weights that came, or less as it is asked to be packed."""
    if task.returns.weights == "none":
        return 0
    # Entries that are picked out travel with their places.
    share = SHARES[task.returns.codec] * min(1.0, 2 * task.returns.keep_ratio)
    return int(task.weights.size_bytes * (share if task.returns.weights == "delta" else 1.0))
