"""What a device tells of its data: its classes always, further facts only where a run asks and its owner agrees."""

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta, Struct, structs

from fedwright.protocol.field_types import ClassNames, Count, Text
from fedwright.protocol.goals import CLASSIFY

# What a run may ask for beyond which classes there are; each by the fields of a summary that tell it.
FACTS: dict[str, tuple[str, ...]] = {
    "class_counts": ("class_counts",),
    "word_counts": ("score_counts",),
    "pixel_std": ("pixel_std",),
    "descriptor": ("descriptor", "number_descriptor"),
}


class DataSummary(Struct, frozen=True):
    """What a device says about its data, and nothing more.

    counted: `class_counts` are counts; else they say 1 for every class that there is. score_counts: how often each word
    occurs. pixel_std: mean spread of an image's pixels. descriptor: random features.
    class_names: what the device calls its classes, which are in this order in all that is told here; empty when it
    keeps that to itself, None when its labels are numbers. input_dtype: of the samples, empty when it is not told.
    goal: what its labels are for.
    number_descriptor: of whole numbers, what `descriptor` would be if they were measured and not word numbers.
    """

    samples: Count
    holdout: Count
    input_shape: Annotated[list[Annotated[int, Meta(ge=1, le=1_000_000)]], Meta(max_length=8)]
    classes: Annotated[int, Meta(ge=1, le=1_000_000)]
    class_counts: Annotated[list[Count], Meta(max_length=1_000_000)] | None = None
    score_counts: Annotated[list[Count], Meta(max_length=1_000_000)] | None = None
    pixel_std: Annotated[float, Meta(ge=0)] | None = None
    descriptor: Annotated[list[float], Meta(max_length=4096)] | None = None
    class_names: ClassNames | None = None
    input_dtype: Text = ""
    number_descriptor: Annotated[list[float], Meta(max_length=4096)] | None = None
    counted: bool = True
    goal: Text = CLASSIFY

    @property
    def known_counts(self) -> list[int] | None:
        """How many samples of each class there are; None where only the classes are told."""
        return self.class_counts if self.counted else None


def told(summary: DataSummary, facts: Collection[str]) -> DataSummary:
    """A summary with these facts, and of everything else only which classes there are."""
    kept = {field for fact in facts for field in FACTS.get(fact, ())}
    left_out = {field: None for fields in FACTS.values() for field in fields if field not in kept}
    if "class_counts" in left_out and summary.class_counts is not None:
        present = [int(count > 0) for count in summary.class_counts]
        left_out |= {"class_counts": present, "counted": False}  # type: ignore[dict-item]
    return structs.replace(summary, **left_out)


def held_back(summary: DataSummary, facts: Collection[str]) -> list[str]:
    """The facts that a device has beside these."""
    others = (fact for fact in FACTS if fact not in facts)
    return [fact for fact in others if any(getattr(summary, field) is not None for field in FACTS[fact])]
