"""FRAMP's assignments: the largest part of its model that a device can train, and what a plan remembers of it."""

import msgspec
import numpy as np
from msgspec import structs

from fedwright.protocol.messages import Recipe, Refusal, Report
from fedwright.server_runtime.blocks.budget import Budget, Cost, largest_choice
from fedwright.server_runtime.methods.base import Array, Assignment, Setting, Tensors
from fedwright.server_runtime.methods.framp.masks import SubmodelMasks
from fedwright.server_runtime.methods.framp.params import FrampParams
from fedwright.server_runtime.methods.shared.budget_fit import LeftOut, largest_fitting, memory_of
from fedwright.server_runtime.spec import Objective, Structure


class AssignmentNote(msgspec.Struct):
    """What a plan must remember of a device's part: which size, the hypernetwork's input, the channels."""

    level: int
    row: bytes
    plan: dict[str, list[int]]

    @property
    def input(self) -> Array:
        """What the hypernetwork read."""
        return np.frombuffer(self.row, np.float32).copy()

    @property
    def channels(self) -> dict[str, Array]:
        """The channels by group; none where parts are made of entries."""
        return {group: np.array(kept, np.int64) for group, kept in self.plan.items()}


def note_of(assignment: Assignment) -> AssignmentNote:
    """What an assignment was made with."""
    return msgspec.msgpack.decode(bytes(assignment.marks), type=AssignmentNote)


class Offers:
    """Turns a model that was written for a device into what the device is asked to do."""

    def __init__(self, params: FrampParams, setting: Setting, *, parts: SubmodelMasks, objective: Objective) -> None:
        self._params, self._setting, self._parts, self._objective = params, setting, parts, objective
        self._left = LeftOut()

    def fitting(
        self, device: str, weights: Tensors, *, row: Array, report: Report, recipe: Recipe
    ) -> Assignment | None:
        """The device's own size, or the largest below it within its budget; None, and a warning, below the least."""
        levels = self._parts.levels(device)
        fit = largest_fitting(
            self._setting,
            device,
            report=report,
            sizes=levels,
            make=lambda level: self._at(level, weights, row=row, recipe=recipe),
            sent_ratio=lambda level: self._params.sizes[level] if self._parts.by_element else 1.0,
        )
        self._parts.note(device, levels[0] if fit is None else fit.size)
        if fit is None:
            self._left.out(device, setting=self._setting, report=report)
            return None
        self._left.back(device)
        return fit.assignment

    def smaller(self, weights: Tensors, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """The largest smaller part that fits into what the device has free, or the least; None below that.

        Fewer entries do not make a graph smaller, fewer channels do.
        """
        if self._parts.by_element:
            return None
        note, sizes = note_of(assignment), self._params.sizes
        offers = [
            self._at(level, weights, row=note.input, recipe=assignment.recipe)
            for level in sorted(range(len(sizes)), key=sizes.__getitem__)
            if sizes[level] < sizes[note.level]
        ]
        room = Budget(memory_bytes=refusal.free_bytes)
        found = largest_choice(offers, lambda offer: Cost(memory_of(self._setting, offer)), room)
        return found or next(iter(offers), None)

    def _at(self, level: int, weights: Tensors, *, row: Array, recipe: Recipe) -> Assignment:
        share = self._params.sizes[level]
        plan = self._parts.channels(weights, share)
        note = AssignmentNote(level, row.tobytes(), {group: kept.tolist() for group, kept in plan.items()})
        returns = structs.replace(
            self._setting.returns,
            class_means=self._params.align > 0,
            masked=self._parts.by_element and share < 1,
        )
        structure = Structure(self._parts.spec(plan), self._objective, self._setting.optimizer)
        return Assignment(structure, recipe, returns, tuple(msgspec.msgpack.encode(note)))
