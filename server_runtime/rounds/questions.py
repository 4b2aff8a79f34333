"""Questions to devices beside their tasks, and what they answer."""

from collections import Counter

from msgspec import structs

from fedwright.protocol.messages import BlobRef, SumAnswer, SumAsk
from fedwright.server_runtime.fleet.registry import Registry
from fedwright.server_runtime.rounds.channel import Channel

# Answers of one device that wait to be looked at: to several questions, and each of them twice.
MOST_KEPT = 16


class Questions:
    """Asks whoever is here now; nothing is kept of a question that is not answered, nor of what nobody asked."""

    def __init__(self, channel: Channel, registry: Registry) -> None:
        self._channel = channel
        self._registry = registry
        self._answers: list[tuple[str, SumAnswer]] = []
        self._asked: set[str] = set()
        self._kept: Counter[str] = Counter()

    def ask(self, device: str, ask: SumAsk) -> bool:
        """Ask a device; False when it is away."""
        boot = self._registry.boot(device)
        if boot is not None:
            self._asked.add(device)
            self._channel.ask(device, structs.replace(ask, boot=boot))
        return boot is not None

    def boot_of(self, device: str) -> str | None:
        """The life of a device that would be asked now; None when it is away."""
        return self._registry.boot(device)

    def pull(self, device: str, ref: BlobRef) -> None:
        """Fetch a blob that an answer speaks of."""
        self._channel.pull(device, ref)

    def take(self, device: str, answer: SumAnswer) -> None:
        """A device has answered; one that was not asked, or says more than it was asked, is not listened to."""
        if device in self._asked and self._kept[device] < MOST_KEPT:
            self._kept[device] += 1
            self._answers.append((device, answer))

    def answers(self) -> list[tuple[str, SumAnswer]]:
        """What devices have answered since the last call."""
        answers, self._answers = self._answers, []
        self._kept.clear()
        return answers
