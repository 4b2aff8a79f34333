"""What the agent and its training process say to each other: typed messages in frames, over two pipes."""

import os
import select
import threading
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from fedwright.device_runtime.equipment_settings import EquipmentSettings
from fedwright.device_runtime.runner import Done
from fedwright.protocol.messages import DataSummary, Refusal, Task

_HEAD_BYTES = 4
# The largest message, a task with the names of very many classes, stays far below.
MAX_FRAME_BYTES = 64 * 1024 * 1024
_READ_BYTES = 1 << 16


class Begin(Struct, tag="begin", frozen=True):
    """Agent → process: do this task; inputs: the files of its blobs by name."""

    task: Task
    inputs: dict[str, str]


class Stop(Struct, tag="stop", frozen=True):
    """Agent → process: the task is no longer wanted."""


class StartProcess(Struct, tag="start", frozen=True):
    """Agent → process, first: with what to train, and from which level on to pass on what is logged."""

    settings: EquipmentSettings
    log_level: int


class Ready(Struct, tag="ready", frozen=True):
    """Process → agent: the data is read; room_bytes: what the limits of the process leave, None without any."""

    summary: DataSummary
    told: DataSummary | None
    room_bytes: int | None


class Unfit(Struct, tag="unfit", frozen=True):
    """Process → agent: it cannot start, and which error says why."""

    error: str
    detail: str


class LogLine(Struct, tag="log", frozen=True):
    """Process → agent: something to log."""

    level: int
    logger: str
    text: str


class StepsNews(Struct, tag="steps", frozen=True):
    """Process → agent, from time to time: how many steps of the task are done."""

    done: int
    of: int


class TaskEnded(Struct, tag="ended", frozen=True):
    """Process → agent: the task is over; without an outcome because it was told to stop."""

    outcome: Done | Refusal | None
    room_bytes: int | None


ToProcess = StartProcess | Begin | Stop
FromProcess = Ready | Unfit | LogLine | StepsNews | TaskEnded
Kind = TypeVar("Kind")


class FrameWriter:
    """Writes messages to a pipe, from any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def write(self, message: ToProcess | FromProcess) -> None:
        """Send a message whole; OSError when the other side is gone."""
        body = msgspec.msgpack.encode(message)
        frame = memoryview(len(body).to_bytes(_HEAD_BYTES, "big") + body)
        with self._lock:
            while frame:
                frame = frame[os.write(self._fd, frame) :]


class FrameReader(Generic[Kind]):
    """Reads messages of known types from a pipe."""

    def __init__(self, fd: int, decoder: "msgspec.msgpack.Decoder[Kind]") -> None:
        self._fd = fd
        self._decoder = decoder
        self._held = bytearray()

    def read(self, timeout_s: float | None = None) -> Kind | None:
        """The next message; None when none came in time, EOFError when the other side is gone."""
        while (message := self._next()) is None:
            ready, _, _ = select.select([self._fd], [], [], timeout_s)
            if not ready:
                return None
            data = os.read(self._fd, _READ_BYTES)
            if not data:
                raise EOFError("the other side closed the pipe")
            self._held += data
        return message

    def _next(self) -> Kind | None:
        size = int.from_bytes(self._held[:_HEAD_BYTES], "big")
        if size > MAX_FRAME_BYTES:
            raise EOFError(f"a message of {size} bytes came, more than any can have")
        if len(self._held) < _HEAD_BYTES or len(self._held) < _HEAD_BYTES + size:
            return None
        body = bytes(self._held[_HEAD_BYTES : _HEAD_BYTES + size])
        del self._held[: _HEAD_BYTES + size]
        return self._decoder.decode(body)


def to_process() -> "msgspec.msgpack.Decoder[ToProcess]":
    """Reads what the agent says."""
    return msgspec.msgpack.Decoder(ToProcess)


def from_process() -> "msgspec.msgpack.Decoder[FromProcess]":
    """Reads what the process says."""
    return msgspec.msgpack.Decoder(FromProcess)
