"""Tasks that their devices have not acknowledged: each is sent again until it is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedwright.protocol.messages import Task

# A device acknowledges a task as soon as it is in its journal; silence this long means it was not heard.
RESEND_S = 5.0
# A task for very many devices at once takes them longer to hear.
HEARD_PER_S = 500.0

Payload = Task | bytes
"""A task, or the message that somebody else made and signed around one."""


@dataclass
class _Outgoing:
    task: str
    device: str
    what: Payload
    sent_s: float


class OutgoingTasks:
    """Which task each device was sent; one task may go to many devices."""

    def __init__(self, send: Callable[[str, Payload], None], *, clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        # In the order in which they were sent.
        self._waiting: dict[tuple[str, str], _Outgoing] = {}
        self._devices: dict[str, set[str]] = {}

    def add(self, task: str, devices: Iterable[str], what: Payload) -> None:
        """A task was sent to these devices."""
        for device in devices:
            self._waiting.pop((task, device), None)
            self._waiting[task, device] = _Outgoing(task, device, what, self._clock())
            self._devices.setdefault(task, set()).add(device)

    def withdraw(self, task: str) -> None:
        """Nobody need acknowledge it any longer."""
        for device in self._devices.pop(task, ()):
            del self._waiting[task, device]

    def acknowledged(self, task: str, by: str) -> None:
        """A device has it, or the edge by way of which the only device that it is for is reached."""
        devices = self._devices.get(task, set())
        device = by if by in devices else next(iter(devices)) if len(devices) == 1 else None
        if device is not None:
            del self._waiting[task, device]
            devices.discard(device)
        if not devices:
            self._devices.pop(task, None)

    def is_waiting(self, task: str, device: str) -> bool:
        """Whether a device was sent a task and has not acknowledged it."""
        return (task, device) in self._waiting

    def tend(self) -> None:
        """Send again what has been waited for long enough."""
        now_s, wait_s = self._clock(), RESEND_S + len(self._waiting) / HEARD_PER_S
        due = []
        for outgoing in self._waiting.values():
            if now_s - outgoing.sent_s < wait_s:
                break
            due.append(outgoing)
        for outgoing in due:
            self.add(outgoing.task, [outgoing.device], outgoing.what)
            self._send(outgoing.device, outgoing.what)
