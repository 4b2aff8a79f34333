"""The agent's side of the training process: starts it, hands it tasks, replaces it when a task has ended it."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields

from msgspec import structs

from fedwright.device_runtime import facts
from fedwright.device_runtime.equipment_settings import EquipmentSettings
from fedwright.device_runtime.runner import Crashed, Done
from fedwright.device_runtime.task_inputs import Inputs, Stopped
from fedwright.device_runtime.training_process.limits import cpu_limit_s
from fedwright.device_runtime.training_process.messages import (
    Begin,
    FrameReader,
    FrameWriter,
    FromProcess,
    LogLine,
    Ready,
    StartProcess,
    StepsNews,
    Stop,
    TaskEnded,
    Unfit,
    from_process,
)
from fedwright.protocol import errors
from fedwright.protocol.errors import DeviceError, FedwrightError
from fedwright.protocol.messages import Refusal, Task

log = logging.getLogger(__name__)

POLL_S = 0.1
# A process that was told to stop and does not is ended after so long.
GRACE_S = 1.0
# One that has nothing to do is ended after so long, and after so many times what its start took: its memory is worth
# more to the board than that start.
REST_S = 60.0
REST_RATIO = 20.0


class _Process:
    """One training process with its pipes."""

    def __init__(self, settings: EquipmentSettings) -> None:
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "fedwright.device_runtime.training_process.child"]
        try:
            self._popen = subprocess.Popen(
                [*command, str(os.getpid()), str(writing)], stdin=subprocess.PIPE, pass_fds=(writing,)
            )
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        assert self._popen.stdin is not None
        self._reading = reading
        self._orders = FrameWriter(self._popen.stdin.fileno())
        self._answers: FrameReader[FromProcess] = FrameReader(reading, from_process())
        self.say(StartProcess(settings, logging.getLogger().getEffectiveLevel()))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    def say(self, message: StartProcess | Begin | Stop) -> None:
        """Tell it something; when it is gone, the next `hear` says so."""
        try:
            self._orders.write(message)
        except OSError as err:
            log.debug("the training process hears nothing: %s", err)

    def hear(self, timeout_s: float | None) -> FromProcess | None:
        """What it says next but for lines to log; None when nothing came in time, EOFError when it is gone."""
        message = self._answers.read(timeout_s)
        while isinstance(message, LogLine):
            logging.getLogger(message.logger).log(message.level, "%s", message.text)
            message = self._answers.read(timeout_s)
        return message

    def kill(self) -> None:
        """End it; its pipe closes."""
        self._popen.kill()

    def bury(self) -> int:
        """The exit code of a process that is gone or was killed."""
        self._popen.kill()
        code = self._popen.wait()
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        os.close(self._reading)
        return code


class TrainingProcess:
    """Does tasks in a process beside this one, kept from task to task; start it from a thread that lives on.

    After `rest_s` without a task, or longer where it starts slowly, it is ended until the next one comes.
    """

    def __init__(self, settings: EquipmentSettings, *, rest_s: float = REST_S) -> None:
        self._settings = settings
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._rest_s = rest_s
        self._resting: threading.Timer | None = None
        self._busy = False
        self._room_bytes: int | None = None
        self._steps = StepsNews(0, 0)
        self._start_s = 0.0
        self.ready = self._start()
        self._rest_later()

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        process = self._process
        return None if process is None else process.pid

    def run(self, task: Task, inputs: Inputs, *, should_stop: Callable[[], bool]) -> Done | Refusal:
        """Do a task to its end."""
        with self._lock:
            if self._closed.is_set() or should_stop():
                raise Stopped
            self._busy = True
            self._stay()
        try:
            return self._run(task, inputs, should_stop)
        finally:
            self._busy = False
            self._rest_later()
            if self._closed.is_set():
                self._gone()

    def _run(self, task: Task, inputs: Inputs, should_stop: Callable[[], bool]) -> Done | Refusal:
        if self._process is None:
            self._start()
        cpu_s = time.process_time()
        paths = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
        begin = Begin(task, {name: str(path) for name, path in paths.items() if path is not None})
        found = self._outcome(begin, lambda: self._closed.is_set() or should_stop())
        if isinstance(found, Refusal):
            return found
        # What the agent used meanwhile, for messages and blobs, is part of what the task cost.
        used = found.stats.cpu_s + time.process_time() - cpu_s
        return structs.replace(found, stats=structs.replace(found.stats, cpu_s=used))

    def free_bytes(self) -> int:
        """Memory that a task may take."""
        free = facts.free_bytes()
        return free if self._room_bytes is None else min(free, self._room_bytes)

    def progress(self) -> tuple[int, int]:
        """Steps of training that are done, and how many there are."""
        return self._steps.done, self._steps.of

    def close(self) -> None:
        """End what runs at once; nothing can be run after."""
        self._closed.set()
        with self._lock:
            self._stay()
            if self._process is not None:
                self._process.kill()
        # A thread that waits for the process sees its end, and does the rest.
        if not self._busy:
            self._gone()

    def _start(self) -> Ready:
        with self._lock:
            if self._closed.is_set():
                raise Stopped
            process = self._process = _Process(self._settings)
        began_s = time.monotonic()
        try:
            said = process.hear(None)
        except EOFError:
            raise self._crash("while it read the data", self._closed.is_set) from None
        if isinstance(said, Unfit):
            self._gone()
            raise _error(said)
        if not isinstance(said, Ready):
            self._gone()
            raise DeviceError(f"the training process began with {type(said).__name__}; install this release again")
        self._room_bytes = said.room_bytes
        self._start_s = time.monotonic() - began_s
        return said

    def _outcome(self, begin: Begin, should_stop: Callable[[], bool]) -> Done | Refusal:
        process = self._process
        assert process is not None
        self._steps = StepsNews(0, 0)
        process.say(begin)
        asked_s: float | None = None
        try:
            while not isinstance(said := process.hear(POLL_S), TaskEnded):
                if isinstance(said, StepsNews):
                    self._steps = said
                if not should_stop():
                    continue
                if asked_s is None:
                    asked_s = time.monotonic()
                    process.say(Stop())
                elif time.monotonic() - asked_s > GRACE_S:
                    process.kill()
        except EOFError:
            limit_s = cpu_limit_s(begin.task.deadline_s)
            raise self._crash(f"in a task that may take {limit_s:.0f} s of it", should_stop) from None
        self._room_bytes = said.room_bytes
        if said.outcome is None:
            raise Stopped
        return said.outcome

    def _rest_later(self) -> None:
        with self._lock:
            if self._closed.is_set() or self._process is None:
                return
            self._resting = threading.Timer(max(self._rest_s, REST_RATIO * self._start_s), self._rest)
            self._resting.daemon = True
            self._resting.start()

    def _stay(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def _rest(self) -> None:
        with self._lock:
            if self._busy:
                return
            process, self._process = self._process, None
        if process is not None:
            process.bury()

    def _crash(self, where: str, should_stop: Callable[[], bool]) -> Exception:
        """What it means that the process is gone."""
        code = self._gone()
        if should_stop():
            return Stopped()
        if code == -signal.SIGXCPU:
            return DeviceError(f"the processor time of the training process was used up {where}")
        return Crashed(f"the training process ended with {_said(code)}")

    def _gone(self) -> int:
        with self._lock:
            process, self._process = self._process, None
        return 0 if process is None else process.bury()


def _said(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"{name}, as when memory runs out" if code == -signal.SIGKILL else name


def _error(said: Unfit) -> FedwrightError:
    """The error that a process could not start for, as its own class."""
    known = getattr(errors, said.error, None)
    if isinstance(known, type) and known in (errors.ConfigError, errors.DataError, errors.BadMessage):
        made: FedwrightError = known(said.detail)
        return made
    return DeviceError(said.detail)
