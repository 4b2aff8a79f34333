"""How the rounds speak with devices, whoever carries it."""

from collections.abc import Sequence
from typing import Protocol

from fedwright.protocol.messages import BlobRef, Dismiss, SumAsk, Task
from fedwright.server_runtime.transport.device_channel import Heard
from fedwright.server_runtime.transport.upload_puller import Pulled


class Channel(Protocol):
    """What the tracker needs of whoever speaks with the devices: a channel over a link, or a fleet in this process."""

    def challenge(self, device: str, tell: Sequence[str] = (), *, profile: bool = False) -> None:
        """Ask whoever is alive under this id to report, with these facts of its data; profile: measured anew."""
        ...

    def assign(self, device: str, boot: str, task: Task) -> None:
        """Send a task to one boot of a device until it is acknowledged."""
        ...

    def ask(self, device: str, ask: SumAsk) -> None:
        """Ask one boot of a device for its part in a sum."""
        ...

    def withdraw(self, task: str) -> None:
        """Stop sending a task."""
        ...

    def acknowledge(self, device: str, task: str, *, problem: str = "") -> None:
        """Tell a device that its update or refusal is durable here (or was not used, and why)."""
        ...

    def dismiss(self, device: str, dismissal: Dismiss) -> None:
        """Tell a device to leave."""
        ...

    def pull(self, device: str, ref: BlobRef) -> None:
        """Fetch a blob from a device; a Pulled event tells when it is here."""
        ...

    def edge_of(self, device: str) -> str | None:
        """The edge that a device is reached through, if any."""
        ...

    def recall(self, edge: str, task: str) -> None:
        """Tell an edge not to count on a task any longer."""
        ...

    def recall_all(self, device: str) -> None:
        """Tell edges not to count on the tasks of a device that is shut out or taken out."""
        ...

    def poll(self, timeout_s: float) -> list[Heard | Pulled]:
        """Wait for messages at most this long and return what the coordinator must know."""
        ...
