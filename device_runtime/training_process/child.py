"""The process that trains: reads the data once, then does one task after another until the agent is gone.

Run as `python -m fedwright.device_runtime.training_process.child AGENT PIPE` where AGENT is the process id of the agent
and PIPE the file descriptor for what is said to it; what the agent says comes on standard input.
"""

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from fedwright.device_runtime import facts
from fedwright.device_runtime.equipment import Equipment, make_equipment
from fedwright.device_runtime.in_process import do_task
from fedwright.device_runtime.runner import Done
from fedwright.device_runtime.task_inputs import Stopped, inputs_at
from fedwright.device_runtime.training_process.limits import TaskLimits
from fedwright.device_runtime.training_process.messages import (
    Begin,
    FrameReader,
    FrameWriter,
    LogLine,
    Ready,
    StartProcess,
    StepsNews,
    Stop,
    TaskEnded,
    ToProcess,
    Unfit,
    to_process,
)
from fedwright.protocol.errors import FedwrightError
from fedwright.protocol.messages import Refusal
from fedwright.protocol.support.parent import die_with_parent

# When memory runs out for all, this process goes first and not the agent.
OOM_SCORE = "800"
# How often the agent hears how far a task is.
NEWS_S = 0.5


class _Handler(logging.Handler):
    """Passes on what is logged, so that the agent's own choice of form and place holds."""

    def __init__(self, answers: FrameWriter) -> None:
        super().__init__()
        self._answers = answers

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        with contextlib.suppress(OSError):
            self._answers.write(LogLine(record.levelno, record.name, text))


class _Orders:
    """What the agent says, read in a thread of its own, so that a stop is heard while a graph runs."""

    def __init__(self, orders: FrameReader[ToProcess], equipment: Equipment, stop: threading.Event) -> None:
        self._orders = orders
        self._interrupt = equipment.tools.interrupt
        self.stop = stop
        self.tasks: queue.SimpleQueue[Begin] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                order = self._orders.read()
                if isinstance(order, Begin):
                    self.stop.clear()
                    if self._interrupt is not None:
                        self._interrupt.clear()
                    self.tasks.put(order)
                elif isinstance(order, Stop):
                    self.stop.set()
                    if self._interrupt is not None:
                        self._interrupt.set()
        # The agent is gone; a graph may hold the main thread for ever.
        os._exit(0)


def main(arguments: list[str]) -> None:
    """Serve the agent until it is gone."""
    agent, pipe = int(arguments[0]), int(arguments[1])
    die_with_parent(agent)
    # Both go to the whole group; when the agent has ended in good order, it ends this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    orders, answers = FrameReader(sys.stdin.fileno(), to_process()), FrameWriter(pipe)
    start = orders.read()
    if not isinstance(start, StartProcess):
        return
    logging.basicConfig(level=start.log_level, handlers=[_Handler(answers)])
    limits, stop = TaskLimits(agent), threading.Event()
    try:
        equipment = make_equipment(start.settings, wait=stop.wait)
        summary = equipment.data.summary()
    except FedwrightError as err:
        answers.write(Unfit(type(err).__name__, str(err)))
        return
    answers.write(Ready(summary, equipment.told, facts.process_room_bytes()))
    equipment.tools.steps.tell = _news(answers)
    told = _Orders(orders, equipment, stop)
    while True:
        answers.write(TaskEnded(_done(equipment, told, limits), facts.process_room_bytes()))


def _news(answers: FrameWriter) -> Callable[[int, int], None]:
    """Tells the agent of steps, but not of each."""
    told_s = -NEWS_S

    def tell(done: int, of: int) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s >= NEWS_S:
            told_s = now_s
            answers.write(StepsNews(done, of))

    return tell


def _done(equipment: Equipment, told: _Orders, limits: TaskLimits) -> Done | Refusal | None:
    """The next task from its order to its outcome."""
    order = told.tasks.get()
    limits.begin(order.task.deadline_s)
    try:
        found = do_task(equipment, order.task, inputs_at(order.inputs), should_stop=told.stop.is_set)
    except Stopped:
        return None
    finally:
        limits.end()
    if isinstance(found, Done):
        found = structs.replace(found, stats=structs.replace(found.stats, peak_rss_bytes=facts.peak_rss_bytes()))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
