"""The same task in less memory and more time, before a device gets a smaller model.

Fastest first: a step in one run; no tensor held twice; activations made again as well; and the batch in ever smaller
parts whose gradients are summed. All but the last do the very same arithmetic; parts do too, unless a layer normalises
over the batch, which then is the part. Nodes of a graph hang together and are not parted.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec import structs

from fedwright.protocol.artifact import EDGES, Manifest
from fedwright.server_runtime.artifacts.in_parts import takes_parts
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.spec import Structure

# Parts of a batch differ by one sample, and a layer that normalises over less than two has nothing to go by.
LEAST_NORMALISED = 4


def leaner_forms(manifest: Callable[[Structure], Manifest], assignment: Assignment) -> Iterator[Assignment]:
    """The assignment and its forms for less memory, each slower than the one before; manifest: of a structure."""
    yield assignment
    structure = assignment.structure
    if structure.private:
        return
    if not takes_parts(structure):
        if not structure.recompute:
            yield replace(assignment, structure=replace(structure, recompute=True))
        return
    if not structure.parts:
        yield replace(assignment, structure=replace(structure, parts=True))
    leanest = replace(structure, parts=True, recompute=True)
    if structure != leanest:
        yield replace(assignment, structure=leanest)
    made = manifest(leanest)
    if any(spec.name == EDGES for spec in made.batch):
        return
    normalised = any(slot.role == "buffer" for slot in made.slots)
    part = assignment.recipe.at_once // 2
    while part >= (LEAST_NORMALISED if normalised else 1):
        yield replace(assignment, structure=leanest, recipe=structs.replace(assignment.recipe, part=part))
        part //= 2
