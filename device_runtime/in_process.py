"""Tasks done in this process, with all that training takes."""

from collections.abc import Callable

from fedwright.device_runtime import facts
from fedwright.device_runtime.answers import refusal_of
from fedwright.device_runtime.equipment import Equipment
from fedwright.device_runtime.run_task import run_task
from fedwright.device_runtime.runner import Done
from fedwright.device_runtime.secure.change import row_of
from fedwright.device_runtime.task_inputs import Inputs, Stopped
from fedwright.protocol.messages import Refusal, Task

RESULT_NAME = "result"


class InProcessRunner:
    """Tasks run in the calling thread; a graph that ends its process ends the agent too."""

    def __init__(self, equipment: Equipment) -> None:
        self.equipment = equipment
        self._closed = False

    def run(self, task: Task, inputs: Inputs, *, should_stop: Callable[[], bool]) -> Done | Refusal:
        """Do a task to its end."""
        self.equipment.tools.steps.note(0, 0)
        return do_task(self.equipment, task, inputs, should_stop=lambda: self._closed or should_stop())

    def free_bytes(self) -> int:
        """Memory that a task may take."""
        return facts.free_bytes()

    def progress(self) -> tuple[int, int]:
        """Steps of training that are done, and how many there are."""
        return self.equipment.tools.steps.done, self.equipment.tools.steps.of

    def close(self) -> None:
        """End what runs; nothing can be run after."""
        self._closed = True
        if self.equipment.tools.interrupt is not None:
            self.equipment.tools.interrupt.set()


def do_task(equipment: Equipment, task: Task, inputs: Inputs, *, should_stop: Callable[[], bool]) -> Done | Refusal:
    """Do a task and leave what is to be sent in a file; a refusal says why that could not be."""
    try:
        result = run_task(task, inputs, equipment.data, tools=equipment.tools, should_stop=should_stop)
        if not result.tensors:
            return Done(result.stats)
        file = equipment.folder / RESULT_NAME
        # It is synced when it becomes a blob, or is kept for a sum.
        if task.sum is not None:
            row_of(result.tensors, task, result.stats).astype("<f4", copy=False).tofile(file)
        else:
            file.write_bytes(equipment.residual.encode(task, result.tensors, result.masks))
    except Stopped:
        raise
    except Exception as err:
        # A run that was interrupted ends with an error of onnxruntime.
        if should_stop():
            raise Stopped from err
        return refusal_of(task.task, err)
    return Done(result.stats, str(file))
