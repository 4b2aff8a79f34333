"""What a run must not forget: the plan of every stage before it is sent, every reply before it is acknowledged."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from msgspec import structs

from fedwright.protocol.errors import RoundError
from fedwright.protocol.messages import Task, Update
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.spec import ModelSpec

Kind = Literal["served", "simulated"]

# The stage in which the model is measured that a round made; no round has so many of its own.
_EVALUATION = 1_000_000


@dataclass(frozen=True)
class RunRecord:
    """A run from its birth: its name, the text of its config, and the model that it trains once devices were heard.

    identity: random, made once. kind: over a broker, or simulated. rounds: how many, where that is no longer what the
    config's text says. A run of a release that kept none of the three has none. class_names: of its classes, if
    they have any. rollbacks: how often rounds were taken back; the tasks of those that follow have other ids.
    """

    run: str
    config: str
    spec: ModelSpec | None
    identity: str = ""
    kind: Kind | None = None
    rounds: int | None = None
    class_names: tuple[str, ...] = ()
    rollbacks: int = 0


def check_same_run(known: RunRecord | None, record: RunRecord) -> None:
    """Raise RoundError unless this is the run that a store holds."""
    if known is None or (known.run, known.identity) != (record.run, record.identity):
        held = "no run" if known is None else f"run {known.run}"
        raise RoundError(f"this store holds {held}; use another folder for run {record.run}")


class Position(NamedTuple):
    """Where a run stands: a round, and the stage inside it (relays open further stages)."""

    round: int
    stage: int

    @property
    def is_evaluation(self) -> bool:
        """Whether this is the measurement after a round."""
        return self.stage == _EVALUATION


def evaluation_after(number: int) -> Position:
    """Where the model is measured that a round made; further rounds have no use for this place."""
    return Position(number, _EVALUATION)


@dataclass(frozen=True)
class Planned:
    """One task of a plan and the assignment it was made from."""

    device: str
    task: Task
    assignment: Assignment


@dataclass(frozen=True)
class Reply:
    """How a task ended: with an update, refused by the device, rejected by us, or not before the deadline."""

    task: str
    outcome: Literal["update", "refused", "rejected", "late"]
    update: Update | None = None
    detail: str = ""

    def without_bytes(self) -> "Reply":
        """The reply without the update's tensors, which are a blob as well."""
        if self.update is None or self.update.tensors is None:
            return self
        tensors = structs.replace(self.update.tensors, inline=None)
        return replace(self, update=structs.replace(self.update, tensors=tensors))


class EndedTask(NamedTuple):
    """A task that is over, and how it ended; None for a measurement that nobody waits for any longer."""

    position: Position
    planned: Planned
    reply: Reply | None


@dataclass(frozen=True)
class Remnant:
    """What stays of a device's tasks that were forgotten: what they came to, the last of them and how it ended."""

    record: DeviceRecord
    last_round: int = 0
    last: Reply | None = None


@dataclass(frozen=True)
class Closed:
    """A finished stage: the method's state after it (a blob), the round's metrics, and the tasks that are in it."""

    position: Position
    state: str
    metrics: dict[str, float]
    absorbed: tuple[str, ...] = ()


class RoundStore(Protocol):
    """Durable memory of one run.

    - Each `save_*` MUST be on disk when it returns, whole or not at all.
    - `save_plan` MUST refuse to overwrite a plan, and MUST keep the method's notes in the same act.
    - `save_reply` MUST keep the first reply of a task and return False for every later one. With `retry`, that task
      MUST join the plan of the same stage in the same act, after those that are there.
    - `save_replies` MUST keep all of its replies or none.
    - `reject` MUST turn updates that no closed stage has absorbed into rejections, all of them or none.
    - `end_sum` MUST change all of its replies and forget the sum, or do neither.
    - `roll_back` MUST forget in one act all that came after a round, and end what is pending.
    - `extend_plan` MUST put its tasks after those that are in the plan, all of them or none.
    - `close_stage` MUST be the only way by which `closed` grows.
    - Updates MAY be kept without inline bytes.
    - `forget` MUST remove tasks and keep what stays of them in one act; `reply` MUST know each device's last of them.
    """

    def save_run(self, record: RunRecord) -> None:
        """Record the run; once."""
        ...

    def run(self) -> RunRecord | None:
        """The run, if it was recorded."""
        ...

    def update_run(self, record: RunRecord) -> None:
        """Record more of the run that is here; RoundError for another run."""
        ...

    def save_plan(self, position: Position, plan: Sequence[Planned], *, notes: bytes = b"") -> None:
        """Record who does what in a stage, before anything is sent, and what the method learned to plan it."""
        ...

    def notes(self, position: Position) -> bytes:
        """What the method learned when it planned a stage; empty when that was nothing."""
        ...

    def plan(self, position: Position) -> list[Planned] | None:
        """The plan of a stage, in the order it was saved; None when there is none."""
        ...

    def extend_plan(self, position: Position, more: Sequence[Planned]) -> None:
        """Add tasks to the plan of a stage before they are sent."""
        ...

    def save_reply(self, reply: Reply, *, retry: Planned | None = None) -> bool:
        """Record how a task ended; False when that was known already."""
        ...

    def save_replies(self, replies: Sequence[Reply]) -> None:
        """Record how several tasks ended, all of them or none; RoundError when one of them was known already."""
        ...

    def reject(self, tasks: Sequence[str], detail: str) -> None:
        """Record that updates which were taken cannot be used after all, and why."""
        ...

    def replies(self, position: Position) -> dict[str, Reply]:
        """Replies of a stage by task id."""
        ...

    def reply(self, task: str) -> Reply | None:
        """How a task ended; None when it has not, or nobody planned it."""
        ...

    def is_open(self, task: str) -> bool:
        """Whether a task of this id is planned and has no reply yet."""
        ...

    def pending(self) -> list[tuple[Planned, Reply | None]]:
        """Tasks without a reply, then updates that no closed stage has absorbed, in the order they were saved."""
        ...

    def close_stage(self, closed: Closed) -> None:
        """Record the method's state after a stage."""
        ...

    def closed(self) -> list[Closed]:
        """All finished stages, oldest first; of those whose tasks were forgotten, `absorbed` is empty."""
        ...

    def save_sum(self, name: str, record: bytes) -> None:
        """Record what the members of a sum are told, before they are; in place of what was recorded of it."""
        ...

    def sum(self, name: str) -> bytes | None:
        """What is recorded of a sum; None when it has not begun or is over."""
        ...

    def end_sum(self, name: str, replies: Sequence[Reply]) -> None:
        """Record what became of the tasks in a sum, in place of their replies, and forget the sum, in one act."""
        ...

    def roll_back(self, number: int) -> None:
        """Let the run stand where it stood when this round had closed; the state of that round MUST still be there."""
        ...

    def ended(self, *, before: int | None = None) -> list[EndedTask]:
        """Tasks that no round to come needs, of rounds before this one, in the order of their stages and plans.

        They failed, or a closed stage has absorbed their update, or they are measurements.
        """
        ...

    def forget(self, tasks: Sequence[str], remnants: Mapping[str, Remnant]) -> None:
        """Let go of tasks that have ended; what stays of each device's."""
        ...

    def remnants(self, devices: Collection[str] | None = None) -> dict[str, Remnant]:
        """What stays of tasks that were forgotten, by device; of these devices, or of all."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...
