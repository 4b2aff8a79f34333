"""How many devices a round waits for, so that no device that will not come can keep a run from going on."""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Attendance:
    """Who was turned away, and how many were waited for in vain."""

    _turned_away: set[str] = field(default_factory=set)
    _given_up: int = 0

    def turn_away(self, device: str) -> None:
        """A device's report does not fit the run."""
        self._turned_away.add(device)

    def welcome(self, device: str) -> None:
        """A device that fits is here."""
        self._turned_away.discard(device)

    @property
    def is_spoilt(self) -> bool:
        """Whether a device was turned away that may be one of those who are waited for."""
        return bool(self._turned_away)

    def give_up(self, wanted: int, present: Collection[str]) -> None:
        """The others were waited for in vain; from now on so many are enough."""
        self._given_up = wanted - len(present)

    def needed(self, wanted: int, present: Collection[str]) -> int:
        """How many must be here where `wanted` are asked for; all of them again once they were."""
        if len(present) >= wanted:
            self._given_up = 0
        return wanted - self._given_up
