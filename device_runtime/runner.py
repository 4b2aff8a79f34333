"""Who does a task for the agent: this process, or one beside it (training_process/) that a task may end."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from fedwright.device_runtime.task_inputs import Inputs
from fedwright.protocol.messages import Refusal, Stats, Task


class Done(Struct, tag="done", frozen=True):
    """A task that came to its end; blob: the file with what is to be sent, empty when nothing is."""

    stats: Stats
    blob: str = ""


class Crashed(Exception):
    """The process that trained ended before the task did; says how."""


class TaskRunner(Protocol):
    """Does one task at a time.

    - `run` MUST return what came of the task, MUST raise Stopped soon after `should_stop` says so, and MUST raise
      Crashed when the process that trained is gone; the next task MUST work all the same.
    - `free_bytes` MUST be what a task may still take.
    - `close` MUST end what runs; it is safe from any thread.
    """

    def run(self, task: Task, inputs: Inputs, *, should_stop: Callable[[], bool]) -> Done | Refusal:
        """Do a task to its end."""
        ...

    def free_bytes(self) -> int:
        """Memory that a task may take."""
        ...

    def progress(self) -> tuple[int, int]:
        """Steps of training that are done of the task that runs, and how many it has; zeros before the first."""
        ...

    def close(self) -> None:
        """End what runs; nothing can be run after."""
        ...
