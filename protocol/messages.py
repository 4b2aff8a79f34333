"""The messages that cross the link, as typed records in wire order.

Evolution rules: (1) a field never gets another name on the wire, another type or another use; (2) a new field has a
default; (3) a receiver ignores fields it does not know; (4) anything else raises VERSION. What an earlier release wrote
is in tests/protocol/recorded.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from fedwright.protocol.blob_ref import MAX_CHUNKS as MAX_CHUNKS
from fedwright.protocol.blob_ref import BlobRef as BlobRef
from fedwright.protocol.blob_ref import Patch as Patch
from fedwright.protocol.data_summary import DataSummary as DataSummary
from fedwright.protocol.field_types import ClassNames, Codec, Count, Figures, Id, Key, Seconds, Sha256, Text
from fedwright.protocol.privacy_messages import Hidden as Hidden
from fedwright.protocol.privacy_messages import Hiding as Hiding
from fedwright.protocol.recipe import Recipe as Recipe
from fedwright.protocol.side_messages import Carried as Carried
from fedwright.protocol.side_messages import Held as Held
from fedwright.protocol.side_messages import Here as Here
from fedwright.protocol.side_messages import Recall as Recall
from fedwright.protocol.side_messages import Shown as Shown
from fedwright.protocol.side_messages import Status as Status
from fedwright.protocol.sum_messages import MOST_COUNTS
from fedwright.protocol.sum_messages import CountTerms as CountTerms
from fedwright.protocol.sum_messages import Effort as Effort
from fedwright.protocol.sum_messages import SumAnswer as SumAnswer
from fedwright.protocol.sum_messages import SumAsk as SumAsk
from fedwright.protocol.sum_messages import SumTerms as SumTerms

VERSION = 1

# Chunks of a blob, and of one beyond LARGE_BLOB_BYTES.
CHUNK_BYTES = 256 * 1024
LARGE_CHUNK_BYTES = 1024 * 1024
LARGE_BLOB_BYTES = 16 * 1024 * 1024

# Behind one edge that stands for them.
MOST_DEVICES = 10_000_000

Why = Literal["run_over", "identity_taken", "misfit"]


class Board(Struct, frozen=True):
    """What a device is made of."""

    model: Text
    machine: Text
    cores: Annotated[int, Meta(ge=1, le=4096)]
    ram_bytes: Count
    runtime: Text
    threads: Annotated[int, Meta(ge=1, le=4096)]
    profile: Text = ""
    # The highest clock of its fastest core; 0 where the board does not tell.
    clock_hz: Count = 0


class Report(Struct, tag="report", frozen=True):
    """Device → server: I am here; this is what I am and what I hold."""

    agent: Text
    board: Board
    free_bytes: Count
    data: DataSummary
    task: Id | None = None
    trains: bool = True
    # What `fedwright device profile` measured, as JSON (predictor.profile_from_json).
    profile: Annotated[bytes, Meta(max_length=64 * 1024)] | None = None
    # What the device's owner lets one round take: seconds of work, bytes both ways.
    round_s: Annotated[float, Meta(gt=0)] | None = None
    round_bytes: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    # The architecture that the device wants to keep, by a name of the zoo; for methods that let it.
    model: Text = ""
    # An edge server, which speaks for devices of its own and trains nothing itself.
    edge: bool = False
    # Of a device that hides its counts: how many words a sum of them must have room for; the key is no longer used.
    sum_key: Key | None = None
    sum_words: Annotated[int, Meta(ge=0, le=MOST_COUNTS)] = 0
    # Facts of the data that it does not tell here and would if a run asked for them (data_summary.FACTS).
    would_tell: Annotated[list[Text], Meta(max_length=64)] = []
    # It can take part in sums of changes (sum_messages), and in sums of counts, which it then tells nobody.
    sums: bool = False
    sums_counts: bool = False
    # Codecs of changes that came after the first release and that it knows (codecs.INSTEAD).
    codecs: Annotated[list[Text], Meta(max_length=64)] = []
    # It adds noise to what it puts into a sum where the task asks for it.
    sums_noise: bool = False
    # An edge that stands for so many devices of its own: this report is of all their data.
    stands_for: Annotated[int, Meta(ge=0, le=MOST_DEVICES)] = 0
    # It takes steps in parts (Recipe.part).
    parts: bool = False


class Returns(Struct, frozen=True):
    """What the device sends back besides its statistics.

    codec and keep_ratio (share of the largest entries of each tensor) apply to deltas, not to class means and logits;
    what they leave out stays on the device and is added to its next delta. masked: of tensors that came as some of
    their entries, only those are sent back, without indices. logits: how many public rows there are whose logits are
    asked for. personal: tensors that stay the device's own: it goes on from what it kept of them in this run and sends
    nothing of them.
    """

    weights: Literal["delta", "weights", "none"] = "delta"
    codec: Codec = "float32"
    keep_ratio: Annotated[float, Meta(gt=0, le=1)] = 1.0
    evaluate: bool = True
    # Class means and their counts; on the wire under their first name.
    class_means: bool = field(default=False, name="prototypes")
    masked: bool = False
    logits: Count = 0
    personal: Annotated[list[Text], Meta(max_length=10_000)] = []


class Pool(Struct, frozen=True):
    """Updates that an edge may put together: those of the `size` tasks that have this key and go to this edge.

    by: samples (at most most_samples of this device), or every device the same. clip_norm, norm_factor: largest norm of
    one change, as it is and in medians of the pool. class_means: for the edge alone; the pooled update has none.
    stage, peers: the other edges with pools of this stage, whose clusters may be linked. whole: no clusters of it.
    """

    key: Id
    edge: Id
    size: Annotated[int, Meta(ge=1, le=1_000_000)]
    by: Literal["samples", "devices"] = "samples"
    clip_norm: Annotated[float, Meta(gt=0)] | None = None
    class_means: bool = field(default=False, name="features")
    stage: Id | None = None
    peers: Annotated[list[Id], Meta(max_length=10_000)] = []
    most_samples: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    norm_factor: Annotated[float, Meta(gt=0)] | None = None
    whole: bool = False


class Task(Struct, tag="task", frozen=True):
    """Server → one boot of a device: train this. The device never learns the method's name."""

    task: Id
    boot: Id
    run: Id
    round: Count
    artifact: BlobRef
    weights: BlobRef
    recipe: Recipe
    returns: Returns
    deadline_s: Seconds
    sides: BlobRef | None = None
    frozen: BlobRef | None = None
    # Rows that all devices may see: `x`, and `y` where there are labels.
    public: BlobRef | None = None
    # For the edge on the way, if there is one; nothing to the device.
    pool: Pool | None = None
    # Of two runs with one name each has its own; a server of an earlier release sends none.
    run_identity: Id | None = None
    # Only measures the model as it is after `round`.
    evaluation: bool = False
    # The frozen tensors are of no use once the task is over.
    passing: bool = False
    # All classes of the run in its order, where they have names; the device numbers its labels by them.
    class_names: ClassNames = []
    # The device says what it is at (Status) no oftener than once in so many seconds; 0: not at all.
    status_s: Seconds = 0.0
    # Training on own data hides single samples; what the device measures of them stays there.
    privacy: Hiding | None = None
    # The change stays on the device and goes into a sum that hides it.
    sum: SumTerms | None = None
    # The device keeps the weights after the task: the next ones may come as what changed. patch: so did these.
    keeps: bool = False
    patch: Patch | None = None
    # For every device at this edge, which stands for them: the boot is the edge's.
    shard: Id | None = None

    @property
    def run_key(self) -> str:
        """What is kept of a run belongs to this and to no other run, whatever that is called."""
        return self.run_identity or self.run

    @property
    def is_private(self) -> bool:
        """Whether noise hides what the update tells, so that nothing else may be told of single samples."""
        return self.privacy is not None or (self.sum is not None and self.sum.noise_multiplier is not None)

    @property
    def title(self) -> str:
        """What the task is part of, for a log."""
        return f"evaluation after round {self.round}" if self.evaluation else f"round {self.round}"


class Stats(Struct, frozen=True):
    """What a device measured while it did a task; bytes and peak memory count from the agent's start.

    energy_j: of the whole board or of its processors, where one of them tells.
    """

    samples: Count
    steps: Count
    train_s: Seconds
    cpu_s: Seconds
    peak_rss_bytes: Count
    loss_first: float | None = None
    loss_last: float | None = None
    holdout: Count = 0
    correct_before: Count | None = None
    correct_after: Count | None = None
    task_s: Seconds = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    energy_j: Annotated[float, Meta(ge=0)] | None = None
    # Of `cpu_s`, what the training steps took; the rest is measuring and packing.
    train_cpu_s: Seconds = 0.0
    privacy: Hidden | None = None
    # What the run's goal is judged by where that is not the share of right classes.
    measures_before: Figures | None = None
    measures_after: Figures | None = None


class Part(Struct, frozen=True):
    """One device's share in a pooled update."""

    task: Id
    stats: Stats


class Update(Struct, tag="update", frozen=True):
    """Device → server: the task is done; pull the tensors when you are ready.

    parts: from an edge, the tasks whose mean the tensors are; `task` is the first of them. cluster: of the edge's.
    devices: whose mean it is, from an edge that stands for them.
    """

    task: Id
    round: Count
    stats: Stats
    tensors: BlobRef | None = None
    parts: Annotated[list[Part], Meta(max_length=100_000)] = []
    cluster: Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9_.\-]*\Z")] = ""
    devices: Annotated[int, Meta(ge=1, le=MOST_DEVICES)] = 1


class Refusal(Struct, tag="refusal", frozen=True):
    """Device → server: I cannot do this task, and why."""

    task: Id
    reason: Literal["over_budget", "bad_artifact", "bad_blob", "failed"]
    detail: Text
    need_bytes: Count = 0
    free_bytes: Count = 0
    # Of the policy of the device's owner, if that is what refuses, and the least number that it names.
    rule: Text = ""
    least: Count = 0


class Ack(Struct, tag="ack", frozen=True):
    """Either way: what task `of` carried is durable here; do not send it again. `problem` says why it was not used."""

    of: Id
    problem: Text = ""


class Get(Struct, tag="get", frozen=True):
    """Receiver of a blob → its sender: send these chunks; https: or say where I can fetch it (Located)."""

    sha256: Sha256
    chunks: Annotated[list[Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]], Meta(max_length=MAX_CHUNKS)]
    https: bool = False


class Located(Struct, tag="located", frozen=True):
    """Server → device: the blob can be fetched here for a while, by ranges; or ask for chunks again."""

    sha256: Sha256
    url: Annotated[str, Meta(max_length=8192)]


class Chunk(Struct, tag="chunk", frozen=True):
    """Sender of a blob → its receiver: one chunk, unacknowledged; what is missing is asked for again.

    The data are a view of the message they came in, and its last bytes (codec.encode_parts).
    """

    sha256: Sha256
    index: Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]
    data: Annotated[memoryview, Meta(max_length=4 * 1024 * 1024)]


class Lost(Struct, tag="lost", frozen=True):
    """Sender of a blob → its receiver: I no longer hold it; give up."""

    sha256: Sha256


class Challenge(Struct, tag="challenge", frozen=True):
    """Server → device id: whoever is alive under this id, answer with a report; tell: what it should also say.

    profile: measure yourself first, when there is nothing else to do; an agent of before just reports.
    """

    profile: bool = False
    tell: Annotated[list[Text], Meta(max_length=64)] = []


class Dismiss(Struct, tag="dismiss", frozen=True):
    """Server → one boot of a device: leave, and why. Only `run_over` is no fault of the device."""

    boot: Id
    why: Why
    reason: Text


class Gone(Struct, tag="gone", frozen=True):
    """Last will: the broker says for a device that its connection broke."""


class Ask(Struct, tag="ask", frozen=True):
    """Server of an earlier release → one boot of a device: help to add up counts; answered with a problem (SumAsk)."""

    sum: Id
    boot: Id
    stage: Literal["mask", "open", "score"]
    length: Annotated[int, Meta(ge=1, le=500_000)]
    keys: Annotated[dict[Id, Key], Meta(max_length=20_000)] = {}
    present: Annotated[list[Id], Meta(max_length=20_000)] = []
    pooled: Annotated[list[Count], Meta(max_length=500_000)] = []
    smoothing: Annotated[float, Meta(ge=0)] = 0.0
    class_names: ClassNames = []
    words: bool = False


class Answer(Struct, tag="answer", frozen=True):
    """Device → server of an earlier release: why not."""

    sum: Id
    stage: Literal["mask", "open", "score"]
    masked: Annotated[bytes, Meta(max_length=4 * 1024 * 1024)] = b""
    own: Key | None = None
    pairs: Annotated[dict[Id, Key], Meta(max_length=20_000)] = {}
    score: float | None = None
    problem: Text = ""


Message = (
    Report
    | Task
    | Update
    | Refusal
    | Ack
    | Get
    | Chunk
    | Lost
    | Located
    | Challenge
    | Dismiss
    | Gone
    | Carried
    | Held
    | Recall
    | Shown
    | Here
    | Ask
    | Answer
    | Status
    | SumAsk
    | SumAnswer
)


class Envelope(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Around every message. `id` makes receivers idempotent; `boot` tells two lives of one device apart.

    epoch, sequence: order what one sender says, whatever its clock shows: a server has a higher epoch in each of its
    lives, and both sides count what they send. A sender of an earlier release sets neither, and only `sent_s` says
    when it spoke.
    """

    version: int
    id: Id
    sender: Id
    boot: Id
    sent_s: float
    epoch: Count = 0
    sequence: Count = 0
    # Last, because the data of a chunk are the end of its message.
    body: Message
