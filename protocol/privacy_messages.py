"""What a task asks a device to hide of its samples, and what the device says that it did."""

from typing import Annotated

from msgspec import Meta, Struct

from fedwright.protocol.field_types import Count

Positive = Annotated[float, Meta(gt=0, le=1e9)]


class Hiding(Struct, frozen=True):
    """Server → device: clip the gradient of each sample, add noise of noise_multiplier · clip to their sum."""

    clip: Positive
    noise_multiplier: Positive


class Hidden(Struct, frozen=True):
    """Device → server: so it was done, in `steps` sums over samples each of which was taken with sample_ratio."""

    clip: Positive
    noise_multiplier: Positive
    sample_ratio: Annotated[float, Meta(gt=0, le=1)]
    steps: Count
