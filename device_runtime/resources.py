"""What a device has, whatever it is asked to do."""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedwright import __version__
from fedwright.device_runtime.https_fetch import HttpsFetcher
from fedwright.device_runtime.owner_rules import OwnerRules
from fedwright.device_runtime.runner import TaskRunner
from fedwright.device_runtime.secure.summed_task import check_summed
from fedwright.device_runtime.secure.sums import Offer, SecureSums
from fedwright.device_runtime.self_measure import SelfMeasurement
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.journal import Journal
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.data_summary import FACTS, DataSummary, held_back, told
from fedwright.protocol.errors import DeviceError
from fedwright.protocol.field_types import INSTEAD
from fedwright.protocol.messages import Answer, Ask, BlobRef, Board, Challenge, Report, SumAnswer, SumAsk, Task

if TYPE_CHECKING:
    from fedwright.device_runtime.describe.hidden_counts import HiddenCounts

log = logging.getLogger(__name__)

# With nothing in hand a device sleeps until a message comes; what waits for its owner's hours is looked at so often.
REST_S = 60.0
ASLEEP_S = 86_400.0


@dataclass(frozen=True)
class Resources:
    """What the device has: its board, its disk and who trains for it.

    told: what it can say about its data; unasked: facts of it that it tells although no run asked. profile: what it
    measured of itself, as JSON.
    hidden: its part in sums of counts that it does not tell. sums: its part in sums of changes. model: the architecture
    that it wants to keep. round_s, round_bytes: what its owner lets a round take; owner: what else. fetcher: brings
    large blobs beside the broker, where a server says so.
    """

    board: Board
    told: DataSummary
    blobs: BlobStore
    journal: Journal
    residual: ErrorFeedback
    personal: PersonalLayers
    checkpoint: Checkpoint
    runner: TaskRunner
    trains: bool = True
    profile: bytes | None = None
    hidden: "HiddenCounts | None" = None
    sums: SecureSums | None = None
    round_s: float | None = None
    round_bytes: int | None = None
    model: str = ""
    owner: OwnerRules | None = None
    fetcher: HttpsFetcher | None = None
    unasked: tuple[str, ...] = ()
    takes_parts: bool = True
    measurement: SelfMeasurement = field(default_factory=SelfMeasurement)

    def report(self, asked: Collection[str]) -> Report:
        """What the server hears of this device; asked: facts of the data that its run wants to know."""
        entry = self.journal.entry
        wanted = {*asked, *self.unasked}
        facts = [fact for fact in FACTS if fact in wanted and self.may_tell(fact)]
        return Report(
            agent=__version__,
            board=self.board,
            free_bytes=self.runner.free_bytes(),
            data=told(self.told, facts),
            task=None if entry is None else entry.task.task,
            trains=self.trains,
            profile=self.measurement.found or self.profile,
            round_s=self.round_s,
            round_bytes=self.round_bytes,
            model=self.model,
            sums=self.sums is not None,
            codecs=list(INSTEAD),
            sums_noise=self.sums is not None,
            parts=self.takes_parts,
            would_tell=[fact for fact in held_back(self.told, facts) if self.may_tell(fact)],
            **({} if self.hidden is None else self.hidden.offer()),
        )

    def answer(self, ask: Ask | SumAsk, offer: Offer) -> list[Answer | SumAnswer]:
        """This device's part in a sum; nothing where it takes none."""
        if isinstance(ask, Ask):
            return [Answer(ask.sum, ask.stage, problem="counts go into sums of another kind now; update the server")]
        part = self.sums if ask.counts is None else self.hidden
        return [] if part is None else [part.answer(ask, offer)]

    def may_tell(self, fact: str) -> bool:
        """Whether the owner agrees to a fact of the data being told."""
        return self.owner is None or fact in self.owner.policy.tells

    def asked_by(self, challenge: Challenge, before: Collection[str], *, now_s: float) -> tuple[str, ...]:
        """What a run asks of the data from now on, said when it is more; a measurement waits until it is idle."""
        if challenge.profile:
            self.measurement.want(now_s)
        if set(challenge.tell) - set(before):
            allowed = [fact for fact in challenge.tell if self.may_tell(fact)]
            withheld = [fact for fact in challenge.tell if fact not in allowed]
            log.info(
                "the run asks for %s of the data; told: %s; kept back by the policy: %s",
                ", ".join(challenge.tell),
                ", ".join(allowed) or "nothing",
                ", ".join(withheld) or "nothing",
            )
        return tuple(challenge.tell)

    def may_measure(self) -> bool:
        """Whether nothing keeps the device from measuring itself now: no task, and its owner's hours."""
        return self.journal.entry is None and (self.owner is None or self.owner.may_work())

    def pause_s(self, tick_s: float) -> float:
        """How long nothing here need be looked at; tick_s: how often what is under way is."""
        if self.journal.entry is not None or self.measurement.runs:
            return tick_s
        return REST_S if self.measurement.waits else ASLEEP_S

    def settle(self, task: str, *, used: bool) -> None:
        """Keep what an update left behind here, or take it back when the update was not used."""
        self.residual.settle(task, used=used)
        self.personal.settle(task, used=used)

    def close(self) -> None:
        """End what runs beside the agent."""
        self.runner.close()
        self.measurement.close()

    def check(self, task: Task, link_bytes: int, wanted: Collection[BlobRef]) -> None:
        """Raise DeviceError for a task that this device must not begin.

        link_bytes: sent and received in this life. wanted: the blobs that the task takes.
        """
        if task.sum is not None:
            check_summed(task)
            if self.sums is None:
                raise DeviceError("this device takes part in no sums; leave it out, or set update.secure = false")
        if self.hidden is not None:
            self.hidden.check(task)
        if self.owner is not None:
            missing = sum(ref.size_bytes for ref in wanted if not self.blobs.has(ref.sha256))
            entry = self.journal.entry
            taken = entry.taken if entry is not None and entry.task.task == task.task else ""
            self.owner.check(
                task, link_bytes, missing_bytes=missing, samples=self.told.samples, taken=taken or task.task
            )
