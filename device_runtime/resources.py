"""What a device has, whatever it is asked to do."""

from dataclasses import dataclass

from fedwright.device_runtime.describe.hidden_counts import HiddenCounts
from fedwright.device_runtime.runner import TaskRunner
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.journal import Journal
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.messages import Board, DataSummary


@dataclass(frozen=True)
class Resources:
    """What the device has: its board, its disk and who trains for it.

    told: what it says about its data. profile: what it measured of itself, as JSON.
    hidden: its part in sums of counts that it does not tell. model: the architecture that it wants to keep.
    round_s, round_bytes: what its owner lets a round take.
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
