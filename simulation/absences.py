"""Simulated devices that are not always there: who is away in a round is drawn from their profiles.

A simulation has no clock of its own, so a device that is up for `up_s` and away for `away_s` is away in that share of
the rounds. A loss of power within a task changes nothing that a server could see: the agent goes on from its journal.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedwright.device_runtime.describe.hidden_counts import HiddenCounts
from fedwright.device_runtime.emulate.profiles import DeviceProfile, load_fleet
from fedwright.protocol.messages import Gone, Refusal, Report, Task, Update
from fedwright.server_runtime.run_folder.folder import RunFolder
from fedwright.server_runtime.run_folder.rounds import open_rounds
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.transport.device_channel import Heard
from fedwright.server_runtime.transport.upload_puller import Pulled
from fedwright.simulation.local_fleet import BOOT, LocalFleet, Pool

_UNIT = 2**32


def away_ratio(profile: DeviceProfile) -> float:
    """The share of the time that a device is without power."""
    if profile.up_s is None or profile.away_s is None:
        return 0.0
    return profile.away_s.value / (profile.up_s.value + profile.away_s.value)


def away_ratios(fleet: str | None, devices: Sequence[str]) -> dict[str, float]:
    """Of each device in turn; empty where nobody is ever away."""
    if fleet is None:
        return {}
    kinds = load_fleet(fleet).kinds(len(devices))
    return {device: ratio for device, kind in zip(devices, kinds, strict=True) if (ratio := away_ratio(kind))}


def next_round(folder: RunFolder, url: str | None = None) -> int:
    """The round that a run goes on with; url: of its database, if it has one."""
    if not folder.holds_run:
        return 1
    with closing(open_rounds(folder, url)) as rounds:
        closed = rounds.closed()
    return closed[-1].position.round + 1 if closed else 1


def is_away(seed: int, number: int, device: str, ratio: float) -> bool:
    """Whether a device is away in a round; the same on every machine."""
    return derive_seed(seed, "away", number, device) % _UNIT < ratio * _UNIT


@dataclass(frozen=True)
class Frailty:
    """How often devices are away; first: the round that is next."""

    ratios: Mapping[str, float]
    seed: int
    first: int = 1


class FrailFleet(LocalFleet):
    """A fleet in this process some of whose devices are away in some rounds."""

    def __init__(
        self,
        reports: Mapping[str, Report],
        pool: Pool,
        frailty: Frailty,
        *,
        devices: Path,
        hidden: Mapping[str, HiddenCounts] | None = None,
    ) -> None:
        super().__init__(reports, pool, devices=devices, hidden=hidden)
        self._frailty = frailty
        self._next = frailty.first
        self._away: set[str] = set()
        self._out: set[str] = set()
        self._turned = False

    def assign(self, device: str, boot: str, task: Task) -> None:
        """Have the task done; when all of a round are, others are away in the next."""
        self._out.add(task.task)
        self._next, self._turned = task.round + 1, False
        super().assign(device, boot, task)

    def poll(self, timeout_s: float) -> list[Heard | Pulled]:
        """What the fleet says; after the last answer of a round, who leaves and who comes back.

        Somebody whom the server waits for in vain comes back too, as a power cut ends.
        """
        events = super().poll(timeout_s)
        for event in events:
            if isinstance(event, Heard) and isinstance(event.message, (Update, Refusal)):
                self._out.discard(event.message.task)
        if self._out or (self._turned and events):
            return events
        away = set() if self._turned else self._drawn()
        self._turned = True
        return [*events, *self._change(away)]

    def _drawn(self) -> set[str]:
        seed, ratios = self._frailty.seed, self._frailty.ratios
        return {device for device, ratio in ratios.items() if is_away(seed, self._next, device, ratio)}

    def _change(self, away: set[str]) -> list[Heard | Pulled]:
        left, back = sorted(away - self._away), sorted(self._away - away)
        self._away = away
        gone: list[Heard | Pulled] = [Heard(device, BOOT, Gone()) for device in left]
        return gone + [self.reported(device) for device in back]
