"""What the coordinator tells an observer while it runs; progress bars and dashboards live on these."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedwright.protocol.messages import Report, Stats, Status


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
class DeviceMeasured:
    """A device has measured itself as it was asked to; the profile is in its report."""

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
class Offer:
    """What a device is sent, and what that is expected to take there.

    width: share of the channels. rank: of its adapters, 0 without any. bytes_down: of its own blobs. need_bytes: of
    memory. step_s: of one step of training, None where nothing is known of the device's speed.
    """

    width: float
    rank: int
    macs: int
    bytes_down: int
    need_bytes: int
    step_s: float | None = None


@dataclass(frozen=True)
class StagePlanned:
    """Tasks of a stage are durable and go out now. `evaluation` marks the measurement after the round.

    sent: the device, the task's id and the blob of its weights, for each. offers: by device.
    """

    round: int
    devices: tuple[str, ...]
    evaluation: bool
    sent: tuple[tuple[str, str, str], ...] = ()
    offers: Mapping[str, Offer] = field(default_factory=dict)


@dataclass(frozen=True)
class LessOffered:
    """A device had no memory for its task; a smaller one is durable and goes out now."""

    round: int
    device: str
    detail: str
    evaluation: bool = False


@dataclass(frozen=True)
class UpdateTaken:
    """An update is durable; `seconds` since its task was sent, `blob`: the name of its tensors.

    spans: where those seconds went, as far as the server sees it: waiting, down (or unknown), train, up.
    """

    round: int
    device: str
    stats: Stats
    seconds: float
    evaluation: bool = False
    blob: str = ""
    spans: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceStatus:
    """What a device is at with the task it has; not kept."""

    round: int
    device: str
    status: Status


@dataclass(frozen=True)
class TaskFailed:
    """A task ended without an update: refused, rejected or late."""

    round: int
    device: str
    detail: str
    evaluation: bool = False
    outcome: str = "late"


@dataclass(frozen=True)
class RoundClosed:
    """The method has advanced."""

    round: int
    metrics: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class PrivacySpent:
    """What a run will have told once a round that begins is over: (epsilon, delta), and what they rest on."""

    round: int
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Warned:
    """The method, or another part of the server, warns; `fate`: what became of the device, where it is about one."""

    text: str
    device: str = ""
    fate: str = "warning"


@dataclass(frozen=True)
class Ordered:
    """Somebody has ordered something of the run; force: what all orders together have made of it."""

    order: str
    kind: str
    device: str
    by: str
    force: Mapping[str, object]


Event = (
    Waiting
    | DeviceJoined
    | DeviceMeasured
    | DeviceLost
    | DeviceTurnedAway
    | StagePlanned
    | LessOffered
    | UpdateTaken
    | DeviceStatus
    | TaskFailed
    | RoundClosed
    | PrivacySpent
    | Warned
    | Ordered
)
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer for those who do not watch."""
