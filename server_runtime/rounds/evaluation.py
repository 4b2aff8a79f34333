"""The closing measurement: every present device tries the model that it would use now on its own held-out data."""

from collections.abc import Mapping

from fedwright.protocol.messages import BlobRef, Recipe, Report, Returns
from fedwright.server_runtime.methods.base import Assignment, Emission, Method
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.store.base import Planned, Position
from fedwright.server_runtime.spec import Structure

# What a device must be able to train at, by its own check, to measure a model; it looks at more samples at a time.
EVALUATION_BATCH = 8


def evaluation_plan(
    method: Method,
    planner: Planner,
    position: Position,
    present: Mapping[str, Report],
    *,
    held: Mapping[str, BlobRef] | None = None,
) -> list[Planned]:
    """One task for each device that is here and that the method has met: no training, no tensors back."""
    assignments, emissions = {}, {}
    for device in present:
        spec, weights = method.model_of(device)
        recipe = Recipe(batch=EVALUATION_BATCH, learning_rate=0.0, seed=0, epochs=0)
        returns = Returns(weights="none", personal=list(method.personal_layers(device)))
        assignments[device] = Assignment(Structure(spec), recipe, returns)
        emissions[device] = Emission(weights)
    return planner.plan(position, assignments, emissions, held=held)
