"""Privacy in the loop of a run: what a round tells is written down before it is sent, up to a budget and no further."""

import json
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Hiding, Report
from fedwright.server_runtime.blocks.budget import step_count
from fedwright.server_runtime.blocks.private_mean import CentralNoise
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.privacy.accounting import Release, epsilon, noise_for
from fedwright.server_runtime.rounds.privacy.ledger import LEDGER, Entry, Ledger

CENTRAL = (
    "neighbours: one device more or less; seen by the adversary: every model of the run; trusted: the server, which "
    "clips and draws the noise; not covered: reports, figures and the audit log that the server keeps"
)
DISTRIBUTED = (
    "neighbours: a device's change, or none; seen by the adversary: every sum, and who is in it; noise is drawn on the "
    "devices, of which fewer than a third tell the server theirs; not covered: what devices report of their data, such "
    "as their number of samples, and how long they take"
)
EXAMPLE = (
    "neighbours: one example of a device more or less, in its training part; seen by the adversary: every update; "
    "noise is drawn on the device; not covered: what the device reports of its data, such as its number of examples"
)
SAMPLED = "each device is in a round by itself with a chance that nobody else knows"
# Of the number that decides whether a device is in a round.
LOT_BITS = 53


@dataclass(frozen=True)
class Spending:
    """What was told so far; epsilon: of the worst device."""

    kind: str
    epsilon: float
    delta: float
    rounds: int
    noise_multiplier: float
    assumptions: str
    by_device: Mapping[str, float]

    def line(self) -> str:
        """For a person."""
        worst = f"epsilon {self.epsilon:.3g} at delta {self.delta:g} after {self.rounds} rounds"
        return f"{self.kind}, {worst}, noise multiplier {self.noise_multiplier:.3g}; {self.assumptions}"

    def facts(self) -> dict[str, Any]:
        """For JSON and a model's metadata: without the list of devices."""
        return {
            "kind": self.kind,
            "epsilon": round(self.epsilon, 4) if math.isfinite(self.epsilon) else "infinite",
            "delta": self.delta,
            "rounds": self.rounds,
            "noise_multiplier": self.noise_multiplier,
            "assumptions": self.assumptions,
        }


def central_noise(config: RunConfig) -> CentralNoise | None:
    """What a config asks the server to do to changes."""
    privacy = config.privacy
    if privacy.kind != "central":
        return None
    expected = min(expected_devices(config), float(config.fleet.devices))
    noise = multiplier_of(config)
    return CentralNoise(privacy.clip, noise, expected, privacy.quantile, privacy.clip_rate)


def expected_devices(config: RunConfig) -> float:
    """How many devices a round has, on average."""
    fleet = config.fleet
    return float(fleet.per_round) if fleet.per_round is not None else fleet.sample_ratio * fleet.devices


def multiplier_of(config: RunConfig) -> float:
    """The noise multiplier that is given, or the least that keeps all rounds within the budget."""
    privacy = config.privacy
    if privacy.noise_multiplier is not None or privacy.epsilon is None:
        return privacy.noise_multiplier or 0.0
    delta = privacy.delta - config.run.rounds * empty_chance(config, config.fleet.devices)
    # Whom a sum is over its server knows, so that nobody hides among those who are not in it.
    whole = privacy.kind == "distributed"
    ratio = 1.0 if whole else _ratio(config)
    return noise_for(privacy.epsilon, delta, sample_ratio=ratio, count=config.run.rounds, whole=whole)


def empty_chance(config: RunConfig, devices: int) -> float:
    """The chance that a round's lot falls on none of so many devices; ConfigError where that is no small matter."""
    if config.privacy.kind != "central" or _ratio(config) >= 1:
        return 0.0
    chance = (1 - _ratio(config)) ** devices
    if config.run.rounds * chance > config.privacy.delta / 2:
        raise ConfigError(
            f"fleet.sample_ratio {_ratio(config)} of {devices} devices leaves rounds without any too often for "
            f"privacy.delta {config.privacy.delta:g}; raise sample_ratio, or set it to 1"
        )
    return float(chance)


def _ratio(config: RunConfig) -> float:
    """The chance of a device to be in a round, as far as it counts: a fixed number of devices gives no such chance."""
    return config.fleet.sample_ratio if config.fleet.per_round is None else 1.0


class BudgetSpent(Exception):
    """A round would tell more than the budget allows; the run ends without it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"round {number} would pass the budget of privacy, so the run ends before it")


class NoPrivacy:
    """What the coordinator asks, answered for a run that hides nothing: who is in a round, and whether there is one."""

    @property
    def draws(self) -> bool:
        """Whether each device is drawn by itself, and not a fixed number of them by the run's seed."""
        return False

    def draw(self, devices: Sequence[str]) -> list[str]:
        """The devices of a round, where `draws`."""
        return list(devices)

    def begin(self, number: int) -> bool:
        """Whether a round may begin; what it needs of the one before is then in place."""
        del number
        return True

    def affordable(self, assignments: dict[str, Assignment], reports: Mapping[str, Report]) -> dict[str, Assignment]:
        """The assignments that stay within the budgets of their devices."""
        del reports
        return assignments

    def spend(self, number: int, reports: Mapping[str, Report], assignments: Mapping[str, Assignment]) -> None:
        """Write down what a round will have told, before it is sent; reports: of devices that might be in it."""

    def repeat(self, number: int, devices: Sequence[str], count: int) -> bool:
        """Whether devices may do their task of a round once more, for the count-th time; it is written down then."""
        del number, devices, count
        return True

    def close(self, number: int) -> None:
        """Write down what the next round needs, before this one is closed."""


NO_PRIVACY = NoPrivacy()


class CentralPrivacy(NoPrivacy):
    """Rounds over devices that are drawn by lot, up to a budget."""

    def __init__(
        self, config: RunConfig, folder: Path, *, central: CentralNoise, rollbacks: int, observer: events.Observer
    ) -> None:
        self._config, self._central, self._rollbacks, self._observer = config, central, rollbacks, observer
        self._ledger = Ledger(folder / LEDGER)
        self._ratio = _ratio(config)

    @property
    def draws(self) -> bool:
        """Where less than all devices are wanted."""
        return self._ratio < 1

    def draw(self, devices: Sequence[str]) -> list[str]:
        """Each device with the chance of the config, by the system's randomness; nobody is no draw."""
        chosen: list[str] = []
        while devices and not chosen:
            chosen = [d for d in sorted(devices) if secrets.randbits(LOT_BITS) < self._ratio * 2**LOT_BITS]
        return chosen

    def begin(self, number: int) -> bool:
        """Not where the round, if it was not counted yet, would pass the budget; the clip is what the last one left."""
        self._central.clip = self._ledger.clip_after(number - 1) or self._central.clip
        limit = self._config.privacy.epsilon
        if limit is None or (self._rollbacks, number, 0) in self._ledger.rounds():
            return True
        following = [*self._ledger.releases(), Release(self._central.multiplier, self._ratio)]
        told = self._ledger.empty_chance() + empty_chance(self._config, self._config.fleet.devices)
        return epsilon(following, self._config.privacy.delta - told) <= limit

    def spend(self, number: int, reports: Mapping[str, Report], assignments: Mapping[str, Assignment]) -> None:
        """One sum with noise; a second time for the same round is no second one."""
        eligible = [device for device, report in reports.items() if report.trains]
        chance = empty_chance(self._config, len(eligible))
        entry = Entry(number, self._rollbacks, self._central.multiplier, self._ratio, self._central.clip)
        self._ledger.append(structs.replace(entry, devices=sorted(eligible), empty_chance=chance))
        self._observer(events.PrivacySpent(number, spending_of(self._config, self._ledger).facts()))

    def close(self, number: int) -> None:
        """Where the clip has moved."""
        if self._central.following is not None:
            self._ledger.append(Entry(number, self._rollbacks, next_clip=self._central.settle()))


class DevicePrivacy(NoPrivacy, ABC):
    """Each device has a budget of its own, and is left out of rounds that would pass it."""

    kind = ""

    def __init__(self, config: RunConfig, folder: Path, *, rollbacks: int, observer: events.Observer) -> None:
        self._config, self._rollbacks, self._observer = config, rollbacks, observer
        self._ledger = Ledger(folder / LEDGER)
        self._noise = multiplier_of(config)

    @abstractmethod
    def tells(self, assignment: Assignment, report: Report) -> Release:
        """What a device tells in one round."""

    def affordable(self, assignments: dict[str, Assignment], reports: Mapping[str, Report]) -> dict[str, Assignment]:
        """Of devices that stay within their budget in one round more."""
        return {d: one for d, one in assignments.items() if self._may_tell(d, self.tells(one, reports[d]))}

    def spend(self, number: int, reports: Mapping[str, Report], assignments: Mapping[str, Assignment]) -> None:
        """What each device will tell, also if its update is lost."""
        self._write(number, {device: self.tells(one, reports[device]) for device, one in assignments.items()}, 0)

    def repeat(self, number: int, devices: Sequence[str], count: int) -> bool:
        """Where all of them stay within their budgets; what they told the first time they tell again."""
        first, before = (self._told(number, repeat) for repeat in (0, count))
        again = {device: Release(*first[device]) for device in devices if device in first and device not in before}
        if not all(self._may_tell(device, release) for device, release in again.items()):
            return False
        if again:
            self._write(number, again, count)
        return True

    def _told(self, number: int, repeat: int) -> dict[str, tuple[float, float, int]]:
        entries = self._ledger.rounds().get((self._rollbacks, number, repeat), [])
        return {device: one for entry in entries for device, one in entry.each.items()}

    def _may_tell(self, device: str, release: Release) -> bool:
        limit, whole = self._config.privacy.epsilon, self.kind == "distributed"
        told = [*self._ledger.by_device().get(device, ()), release]
        return limit is None or epsilon(told, self._config.privacy.delta, whole=whole) <= limit

    def _write(self, number: int, told: Mapping[str, Release], repeat: int) -> None:
        each = {device: (one.noise_multiplier, one.sample_ratio, one.count) for device, one in told.items()}
        entry = Entry(number, self._rollbacks, clip=self._config.privacy.clip, each=each, repeat=repeat)
        self._ledger.append(entry)
        self._observer(events.PrivacySpent(number, spending_of(self._config, self._ledger).facts()))


class DistributedPrivacy(DevicePrivacy):
    """Devices add noise to what is summed."""

    kind = "distributed"

    def tells(self, assignment: Assignment, report: Report) -> Release:
        """Its part in one sum, of which everybody knows who is in it."""
        del assignment, report
        return Release(self._noise)


class ExamplePrivacy(DevicePrivacy):
    """Devices hide their own samples."""

    kind = "example"

    def tells(self, assignment: Assignment, report: Report) -> Release:
        """Of its samples, in all steps of a task."""
        samples = max(1, report.data.samples)
        steps = step_count(assignment.recipe, samples)
        return Release(self._noise, min(1.0, assignment.recipe.batch / samples), steps)


def privacy_of(
    config: RunConfig, folder: Path, *, central: CentralNoise | None, rollbacks: int, observer: events.Observer
) -> NoPrivacy:
    """What the coordinator of a run asks."""
    if central is not None:
        return CentralPrivacy(config, folder, central=central, rollbacks=rollbacks, observer=observer)
    kinds: dict[str, type[DevicePrivacy]] = {kind.kind: kind for kind in (DistributedPrivacy, ExamplePrivacy)}
    made = kinds.get(config.privacy.kind)
    return NO_PRIVACY if made is None else made(config, folder, rollbacks=rollbacks, observer=observer)


def hiding_of(config: RunConfig) -> Hiding | None:
    """What tasks ask devices to do to their samples."""
    privacy = config.privacy
    if privacy.kind != "example":
        return None
    return Hiding(privacy.clip, privacy.noise_multiplier or 0.0)


def spending_of(config: RunConfig, ledger: Ledger) -> Spending:
    """What a run has told, by its ledger and its config."""
    kind = config.privacy.kind
    central, whole = kind == "central", kind == "distributed"
    delta = config.privacy.delta - ledger.empty_chance()
    told = sorted(ledger.by_device().items())
    by_device = {device: epsilon(releases, delta, whole=whole) for device, releases in told}
    worst = epsilon(ledger.releases(), delta) if central else max(by_device.values(), default=0.0)
    words = {"central": CENTRAL, "distributed": DISTRIBUTED}.get(kind, EXAMPLE)
    if central and _ratio(config) < 1:
        words = f"{words}; {SAMPLED}"
    noise = next((r.noise_multiplier for each in ledger.by_device().values() for r in each), 0.0)
    rounds = len({key[:2] for key in ledger.rounds()})
    return Spending(kind, worst, config.privacy.delta, rounds, noise, words, by_device)


def read_spending(config: RunConfig, folder: Path) -> Spending | None:
    """What the run in a folder has told; None where nothing is accounted."""
    return None if config.privacy.kind == "none" else spending_of(config, Ledger(folder / LEDGER))


def model_notes(config: RunConfig, folder: Path) -> dict[str, str]:
    """What an exported model says of itself: what it may tell of those whom it learnt from."""
    spending = read_spending(config, folder)
    return {} if spending is None else {"privacy": json.dumps(spending.facts())}
