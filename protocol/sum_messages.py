"""What server and devices say to each other to add up changes, or counts, that nobody may see alone (protocol/secure).

keys: make keys for this sum. share: these are all members; give shares of your secrets for your neighbours. mask: these
have shared; send your change under masks. agree: the sum is over those present; sign that, once. open: so many signed
the same; open what hides the sum. done: it is over, the change is no longer needed. score: say how unlike the pooled
counts your own are.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fedwright.protocol.blob_ref import BlobRef
from fedwright.protocol.field_types import ClassNames, Count, Id, Key, Text
from fedwright.protocol.secure.roster import MOST_MEMBERS, Member

SumStage = Literal["keys", "share", "mask", "agree", "open", "done", "score"]

Names = Annotated[list[Id], Meta(max_length=MOST_MEMBERS)]
Bytes = Annotated[bytes, Meta(max_length=256)]
ByMember = Annotated[dict[Id, Bytes], Meta(max_length=MOST_MEMBERS)]
MOST_COUNTS = 500_000
# Devices with little memory take smaller batches, and so more steps: at most so many times more than others.
MOST_TIMES = 4


class Effort(Struct, frozen=True):
    """How much everybody in a sum trains: who trained far more than the others would stand out of it.

    batch: the largest of the group; none has less than a part of it (MOST_TIMES). epochs: of all. steps: of all in
    their place. multiple: each does as many steps as its epochs take, in whole groups of this size.
    """

    batch: Annotated[int, Meta(ge=1, le=65_536)]
    epochs: Annotated[int, Meta(ge=0, le=100_000)] = 1
    steps: Annotated[int, Meta(ge=0, le=100_000_000)] | None = None
    multiple: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None


class SumTerms(Struct, frozen=True):
    """How a task's change goes into a sum instead of to the server; the same for all in the sum.

    group: of the tasks that may be summed together. least: members it takes. reach: largest entry of a change.
    largest_weight: what a device counts for at most, in samples; 1 where every device counts the same. clip_norm: the
    device scales a longer change down to this norm. noise_multiplier: and it adds its share of the noise that gives the
    sum so many times clip_norm; then all count the same (noisy_words).
    """

    group: Id
    least: Annotated[int, Meta(ge=3, le=MOST_MEMBERS)]
    reach: Annotated[float, Meta(gt=0, le=1e6)]
    effort: Effort
    by: Literal["samples", "devices"] = "samples"
    largest_weight: Annotated[int, Meta(ge=1, le=2**53)] = 1
    clip_norm: Annotated[float, Meta(gt=0)] | None = None
    noise_multiplier: Annotated[float, Meta(ge=1e-2, le=1e4)] | None = None

    def weight(self, samples: int) -> int:
        """What a device with so many samples counts for."""
        alike = self.by == "devices" or self.noise_multiplier is not None
        return 1 if alike else min(samples, self.largest_weight)


class CountTerms(Struct, frozen=True):
    """Counts of a device's data in place of a task's change.

    length: how many. words: of words, and not of classes in the order of class_names. least: members it takes.
    """

    length: Annotated[int, Meta(ge=1, le=MOST_COUNTS)]
    least: Annotated[int, Meta(ge=3, le=MOST_MEMBERS)]
    words: bool = False
    class_names: ClassNames = []


class SumAsk(Struct, tag="sum_ask", frozen=True):
    """Server → one boot of a device: the next stage of a sum.

    task: whose change it is, or a name for a device's counts (`counts`, said in every stage). signatures: with `agree`
    those of the present under their masked parts, with `open` those under the agreement. pooled, smoothing: with
    `score`, what a device compares its counts with.
    """

    sum: Id
    boot: Id
    stage: SumStage
    task: Id
    roster: Annotated[bytes, Meta(max_length=6 * 1024 * 1024)] = b""
    sharers: Names = []
    sealed: ByMember = {}
    present: Names = []
    signatures: ByMember = {}
    counts: CountTerms | None = None
    pooled: Annotated[list[Count], Meta(max_length=MOST_COUNTS)] = []
    smoothing: Annotated[float, Meta(ge=0)] = 0.0


class SumAnswer(Struct, tag="sum_answer", frozen=True):
    """Device → server: what a stage asks for, or (`problem`) why not.

    sealed, marks: for each neighbour. signature: under the masked part, or the agreement. own, shares: what is opened.
    """

    sum: Id
    stage: SumStage
    member: Member | None = None
    sealed: ByMember = {}
    marks: ByMember = {}
    masked: BlobRef | None = None
    signature: Annotated[bytes, Meta(max_length=64)] = b""
    own: Key | None = None
    shares: ByMember = {}
    problem: Text = ""
    score: float | None = None
