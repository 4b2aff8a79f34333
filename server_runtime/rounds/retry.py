"""A device that has no memory for its task, or too few samples in a step for its owner, gets another one at once."""

from collections import Counter
from dataclasses import replace

from msgspec import structs

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.messages import Refusal
from fedwright.protocol.predictor import need_bytes
from fedwright.server_runtime.blocks.budget import largest
from fedwright.server_runtime.methods.base import Assignment, Method
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.store.base import Planned
from fedwright.server_runtime.rounds.task_tracker import LEAST_BATCH, OfferLess

# A device that refuses so often in one round is left out of it.
MOST_OFFERS = 6
# No owner's wish makes batches larger than so many times what the run asks for.
MOST_TIMES = 16


def smaller_tasks(method: Method, planner: Planner) -> OfferLess:
    """The method's own next smaller assignment, or else the same one in smaller batches; so are measurements.

    Where the device's owner asks for larger batches, the same one in such.
    """
    offers: Counter[tuple[str, str]] = Counter()

    def offer_less(planned: Planned, refusal: Refusal) -> Planned | None:
        recipe = planned.assignment.recipe
        place = (planned.device, planned.task.title)
        if offers[place] >= MOST_OFFERS:
            return None
        offers[place] += 1
        if refusal.rule == LEAST_BATCH:
            larger = obeying(planned.assignment, refusal.least)
            return None if larger is None else planner.resized(planned, larger)
        trains = recipe.epochs > 0 or recipe.steps is not None
        # What goes into a sum stays what the others of the sum train.
        alone = trains and planned.task.sum is None
        less = method.shrink(planned.device, planned.assignment, refusal) if alone else None
        if less is not None:
            less = replace(less, most_samples=planned.assignment.most_samples)
            return planner.again(planned, less, method.emit(planned.device, less))
        manifest = planner.manifest(planned.assignment.structure)
        smaller = refit_batch(planned.assignment, manifest, refusal.free_bytes)
        # The tensors stay what they were: a method that was resumed since may not have them any longer.
        return None if smaller is None else planner.resized(planned, smaller)

    return offer_less


def refit_batch(assignment: Assignment, manifest: Manifest, free_bytes: int) -> Assignment | None:
    """The assignment at the largest batch that fits into so much memory; at most half of what was refused."""
    fits = largest(1, assignment.recipe.batch // 2, lambda batch: need_bytes(manifest, batch) <= free_bytes)
    if fits is None:
        return None
    return replace(assignment, recipe=structs.replace(assignment.recipe, batch=fits))


def obeying(assignment: Assignment, least: int) -> Assignment | None:
    """The assignment at the least batch that a device's owner allows; None for a wish that nobody can mean."""
    batch = assignment.recipe.batch
    if not batch < least <= MOST_TIMES * batch:
        return None
    return replace(assignment, recipe=structs.replace(assignment.recipe, batch=least))
