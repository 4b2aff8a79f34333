"""What a run must not forget: the plan of every stage before it is sent, every reply before it is acknowledged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from fedwright.protocol.messages import Task, Update
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.spec import ModelSpec


@dataclass(frozen=True)
class RunRecord:
    """A run from its birth: its id, the text of its config, and the model that it trains."""

    run: str
    config: str
    spec: ModelSpec


class Position(NamedTuple):
    """Where a run stands: a round, and the stage inside it (relays open further stages)."""

    round: int
    stage: int


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
    - `extend_plan` MUST put its tasks after those that are in the plan, all of them or none.
    - `close_stage` MUST be the only way by which `closed` grows.
    """

    def save_run(self, record: RunRecord) -> None:
        """Record the run; once."""
        ...

    def run(self) -> RunRecord | None:
        """The run, if it was recorded."""
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
        """All finished stages, oldest first."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...
