"""Makes of a model that was written for a device the part that it gets."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedwright.server_runtime.blocks.slicing import take
from fedwright.server_runtime.methods.base import Emission, Tensors
from fedwright.server_runtime.methods.framp.assignments import AssignmentNote
from fedwright.server_runtime.methods.framp.masks import SubmodelMasks, threshold, with_masks


@dataclass(frozen=True)
class Cutter:
    """What all devices of a round have in common; running: statistics that nobody writes. sides: of each task."""

    parts: SubmodelMasks
    sizes: Sequence[float]
    running: Tensors
    sides: Tensors
    fiarse: bool

    def emission(self, item: tuple[Tensors, AssignmentNote]) -> Emission:
        """The part of a model that its note says."""
        made, note = item
        weights, sides = {**made, **self.running}, dict(self.sides)
        if note.plan:
            return Emission(take(weights, self.parts.axes, note.channels), sides)
        masks = self.parts.masks(weights, self.sizes[note.level])
        if self.fiarse:
            sides["threshold"] = threshold(weights, masks)
        return Emission(with_masks(weights, masks), sides, masks=masks)


def emission_of(item: tuple[Tensors, AssignmentNote], cutter: Cutter) -> Emission:
    """The same as a function, which travels with its arguments."""
    return cutter.emission(item)
