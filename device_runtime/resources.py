"""What a device has, whatever it is asked to do."""

from dataclasses import dataclass

from fedwright.device_runtime.describe.hidden_counts import HiddenCounts
from fedwright.device_runtime.owner_rules import OwnerRules
from fedwright.device_runtime.runner import TaskRunner
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.journal import Journal
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.messages import Board, DataSummary, Task
from fedwright.protocol.task_blobs import blobs_of


@dataclass(frozen=True)
class Resources:
    """What the device has: its board, its disk and who trains for it.

    told: what it says about its data. profile: what it measured of itself, as JSON.
    hidden: its part in sums of counts that it does not tell. model: the architecture that it wants to keep.
    round_s, round_bytes: what its owner lets a round take; owner: what else.
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
    hidden: HiddenCounts | None = None
    round_s: float | None = None
    round_bytes: int | None = None
    model: str = ""
    owner: OwnerRules | None = None

    def check(self, task: Task, link_bytes: int) -> None:
        """Raise DeviceError for a task that this device must not begin; link_bytes: sent and received in this life."""
        if self.hidden is not None:
            self.hidden.check(task)
        if self.owner is not None:
            missing = sum(ref.size_bytes for ref in blobs_of(task) if not self.blobs.has(ref.sha256))
            self.owner.check(task, link_bytes, missing_bytes=missing)
