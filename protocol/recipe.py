"""How a task asks a device to train."""

from typing import Annotated

from msgspec import Meta, Struct

from fedwright.protocol.field_types import Count


class Recipe(Struct, frozen=True):
    """How to train: `steps` when given, else `epochs` over the local data (0 = only evaluate).

    classes: train on the samples of these classes only. public: train on the task's public rows instead of own data.
    part: so many samples of a batch at a time at most, whose gradients are summed before the step is taken.
    """

    batch: Annotated[int, Meta(ge=1, le=65_536)]
    learning_rate: Annotated[float, Meta(ge=0)]
    seed: Annotated[int, Meta(ge=0, le=2**62)]
    epochs: Annotated[int, Meta(ge=0, le=100_000)] = 1
    steps: Annotated[int, Meta(ge=0, le=100_000_000)] | None = None
    classes: Annotated[list[Count], Meta(max_length=1_000_000)] | None = None
    public: bool = False
    part: Annotated[int, Meta(ge=1, le=65_536)] | None = None

    @property
    def at_once(self) -> int:
        """The most samples that are in memory together."""
        return self.batch if self.part is None else min(self.part, self.batch)
