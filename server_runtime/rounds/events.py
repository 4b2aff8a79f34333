"""What the coordinator tells an observer while it runs; progress bars and dashboards live on these."""

from collections.abc import Callable
from dataclasses import dataclass

from fedwright.protocol.messages import Report, Stats


@dataclass(frozen=True)
class Waiting:
    """A round cannot begin before so many devices are here; `present` are."""

    needed: int
    present: tuple[str, ...]


@dataclass(frozen=True)
class DeviceJoined:
    """A device reported for the first time, or came back under a new boot."""

    device: str
    report: Report


@dataclass(frozen=True)
class DeviceLost:
    """A device's connection broke; it may come back before the deadline."""

    device: str


@dataclass(frozen=True)
class DeviceTurnedAway:
    """A device was dismissed, and why."""

    device: str
    reason: str


@dataclass(frozen=True)
class StagePlanned:
    """Tasks of a stage are durable and go out now. `evaluation` marks the closing measurement."""

    round: int
    devices: tuple[str, ...]
    evaluation: bool


@dataclass(frozen=True)
class LessOffered:
    """A device had no memory for its task; a smaller one is durable and goes out now."""

    round: int
    device: str
    detail: str


@dataclass(frozen=True)
class UpdateTaken:
    """An update is durable; `seconds` since the stage began."""

    round: int
    device: str
    stats: Stats
    seconds: float


@dataclass(frozen=True)
class TaskFailed:
    """A task ended without an update: refused, rejected or late."""

    round: int
    device: str
    detail: str


@dataclass(frozen=True)
class RoundClosed:
    """The method has advanced."""

    round: int
    metrics: dict[str, float]
    seconds: float


Event = (
    Waiting
    | DeviceJoined
    | DeviceLost
    | DeviceTurnedAway
    | StagePlanned
    | LessOffered
    | UpdateTaken
    | TaskFailed
    | RoundClosed
)
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer for those who do not watch."""
