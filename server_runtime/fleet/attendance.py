"""How many devices a round waits for: none that was turned away, and none that a whole wait has missed."""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Attendance:
    """What is known of devices that will not come, so that none of them can keep a run from going on."""

    _turned_away: set[str] = field(default_factory=set)
    _given_up: int = 0

    def turn_away(self, device: str) -> None:
        """A device's report does not fit the run."""
        self._turned_away.add(device)

    def welcome(self, device: str) -> None:
        """A device that fits is here."""
        self._turned_away.discard(device)

    def give_up(self, wanted: int, present: Collection[str]) -> None:
        """The others were waited for in vain; from now on so many are enough."""
        self._given_up = wanted - len(present)

    def needed(self, wanted: int, present: Collection[str], *, least: int | None) -> int:
        """How many must be here where `wanted` are asked for and `least` will do; None: nothing less than wanted."""
        if least is None:
            return wanted
        if len(present) >= wanted:
            self._given_up = 0
        return min(wanted, max(least, 1, wanted - max(len(self._turned_away), self._given_up)))
