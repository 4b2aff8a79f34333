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
    """A device was dismissed, and why; `double`: it is a second one under the id of another, which stays."""

    device: str
    reason: str
    double: bool = False


@dataclass(frozen=True)
class StagePlanned:
    """Tasks of a stage are durable and go out now. `evaluation` marks the measurement after the round."""

    round: int
    devices: tuple[str, ...]
    evaluation: bool


@dataclass(frozen=True)
class LessOffered:
    """A device had no memory for its task; a smaller one is durable and goes out now."""

    round: int
    device: str
    detail: str
    evaluation: bool = False


@dataclass(frozen=True)
class UpdateTaken:
    """An update is durable; `seconds` since the stage began."""

    round: int
    device: str
    stats: Stats
    seconds: float
    evaluation: bool = False


@dataclass(frozen=True)
class TaskFailed:
    """A task ended without an update: refused, rejected or late."""

    round: int
    device: str
    detail: str
    evaluation: bool = False


@dataclass(frozen=True)
class RoundClosed:
    """The method has advanced."""

    round: int
    metrics: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Warned:
    """The method, or another part of the server, warns; `fate`: what became of the device, where it is about one."""

    text: str
    device: str = ""
    fate: str = "warning"


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
    | Warned
)
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer for those who do not watch."""
