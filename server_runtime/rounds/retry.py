"""A device that has no memory for its task, or whose owner does not allow it, gets another one at once if there is one.

Of an owner's rules three can be obeyed: larger batches (`least_batch`), nothing measured (`returns`) and fewer bytes
(`mb_per_day`): a smaller model where the method has one, else a change in fewer bits.
"""

from collections import Counter
from dataclasses import replace
from itertools import islice

from msgspec import structs

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.field_types import Codec
from fedwright.protocol.messages import Refusal, SumTerms
from fedwright.protocol.predictor import need_bytes
from fedwright.protocol.sum_messages import MOST_TIMES as SUM_TIMES
from fedwright.server_runtime.blocks.budget import largest
from fedwright.server_runtime.methods.base import Assignment, Method
from fedwright.server_runtime.methods.shared.memory_forms import leaner_forms
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.store.base import Planned
from fedwright.server_runtime.rounds.task_tracker import OfferLess

# A device that refuses so often in one round is left out of it.
MOST_OFFERS = 6
# No owner's wish makes batches larger than so many times what the run asks for.
MOST_TIMES = 16
# The rule of an owner that a smaller model may obey.
FEWER_BYTES = "mb_per_day"
FEWER_BITS: dict[str, Codec] = {"float32": "int8", "bf16": "int8", "int8": "int4"}


def smaller_tasks(method: Method, planner: Planner) -> OfferLess:
    """The method's own next smaller assignment, or else the same one in smaller batches; so are measurements.

    Where the device's owner refuses, the same task within his rules.
    """
    offers: Counter[tuple[str, str]] = Counter()

    def offer_less(planned: Planned, refusal: Refusal) -> Planned | None:
        place = (planned.device, planned.task.title)
        if offers[place] >= MOST_OFFERS or (refusal.reason != "over_budget" and not refusal.rule):
            return None
        if refusal.rule == "least_batch" and planned.task.privacy is not None:
            # Larger lots tell more of each sample than the round has set aside.
            return None
        offers[place] += 1
        allowed = obeying(planned.assignment, refusal) if refusal.rule else None
        if allowed is not None:
            return planner.resized(planned, allowed) if stays_in_sum(planned.task.sum, allowed) else None
        if refusal.rule and refusal.rule != FEWER_BYTES:
            return None
        recipe = planned.assignment.recipe
        trains = recipe.epochs > 0 or recipe.steps is not None
        # What goes into a sum stays what the others of the sum train.
        alone = trains and planned.task.sum is None
        leaner = _leaner(planned, planner, refusal) if alone and not refusal.rule else None
        if leaner is not None:
            return planner.resized(planned, leaner)
        less = method.shrink(planned.device, planned.assignment, refusal) if alone else None
        if less is not None:
            less = replace(less, most_samples=planned.assignment.most_samples)
            return planner.again(planned, less, method.emit(planned.device, less))
        if refusal.rule:
            packed = in_fewer_bits(planned.device, planned.assignment, planner) if alone else None
            return None if packed is None else planner.resized(planned, packed)
        manifest = planner.manifest(planned.assignment.structure)
        smaller = refit_batch(planned.assignment, manifest, refusal.free_bytes)
        # The tensors stay what they were: a method that was resumed since may not have them any longer.
        return planner.resized(planned, smaller) if smaller and stays_in_sum(planned.task.sum, smaller) else None

    return offer_less


def stays_in_sum(terms: SumTerms | None, assignment: Assignment) -> bool:
    """Whether a batch is still one that the others of a sum were told of."""
    batch = assignment.recipe.batch
    return terms is None or batch <= terms.effort.batch <= SUM_TIMES * batch


def _leaner(planned: Planned, planner: Planner, refusal: Refusal) -> Assignment | None:
    """The same task in less memory and more time, if a form of it fits into what the device has."""
    if not planner.slower or not planner.takes_parts(planned.device):
        return None
    forms = leaner_forms(planner.manifest, planned.assignment)
    # The first is what was refused.
    for form in islice(forms, 1, None):
        if need_bytes(planner.manifest(form.structure), form.recipe.at_once) <= refusal.free_bytes:
            return form
    return None


def refit_batch(assignment: Assignment, manifest: Manifest, free_bytes: int) -> Assignment | None:
    """The assignment at the largest batch that fits into so much memory; at most half of what was refused."""
    fits = largest(1, assignment.recipe.at_once // 2, lambda batch: need_bytes(manifest, batch) <= free_bytes)
    if fits is None:
        return None
    if manifest.sums:
        return replace(assignment, recipe=structs.replace(assignment.recipe, part=fits))
    return replace(assignment, recipe=structs.replace(assignment.recipe, batch=fits))


def in_fewer_bits(device: str, assignment: Assignment, planner: Planner) -> Assignment | None:
    """The assignment with its change packed further, as far as the device's agent can."""
    returns = assignment.returns
    if returns.weights != "delta" or returns.codec not in FEWER_BITS:
        return None
    fewer = planner.known_to(device, structs.replace(returns, codec=FEWER_BITS[returns.codec]))
    return None if fewer.codec == returns.codec else replace(assignment, returns=fewer)


def obeying(assignment: Assignment, refusal: Refusal) -> Assignment | None:
    """The assignment as a device's owner allows it; None for a wish that cannot be met, or that nobody can mean."""
    recipe, returns = assignment.recipe, assignment.returns
    if refusal.rule == "least_batch" and recipe.batch < refusal.least <= MOST_TIMES * recipe.batch:
        return replace(assignment, recipe=structs.replace(recipe, batch=refusal.least))
    if refusal.rule == "least_batch" and recipe.part is not None and refusal.least <= recipe.batch:
        # Parts may have half as many samples as they are allowed.
        part = 2 * refusal.least
        return replace(assignment, recipe=structs.replace(recipe, part=part if part < recipe.batch else None))
    # What a round is for is the change; figures beside it can be done without.
    if refusal.rule == "returns" and returns.evaluate and returns.weights != "none":
        return replace(assignment, returns=structs.replace(returns, evaluate=False))
    return None
