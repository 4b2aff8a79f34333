"""What a round is expected to take of its devices, and what it cost them."""

from collections.abc import Callable, Mapping, Sequence

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.predictor import need_bytes
from fedwright.protocol.task_blobs import sent_blobs
from fedwright.server_runtime.fleet.speeds import Speeds
from fedwright.server_runtime.rounds.events import Offer
from fedwright.server_runtime.rounds.store.base import Planned, Reply
from fedwright.server_runtime.spec import Structure
from fedwright.server_runtime.zoo import width_of


def offers_of(plan: Sequence[Planned], manifest: Callable[[Structure], Manifest], speeds: Speeds) -> dict[str, Offer]:
    """What each device is sent, and what that is expected to take there."""
    return {planned.device: _offer(planned, manifest(planned.assignment.structure), speeds) for planned in plan}


def _offer(planned: Planned, manifest: Manifest, speeds: Speeds) -> Offer:
    recipe, spec = planned.task.recipe, planned.assignment.structure.spec
    try:
        predicted = speeds.predict(planned.device, manifest, batch=recipe.batch, part=recipe.part)
    except BadArtifact:
        # What a device measured of itself does not fit this graph.
        predicted = None
    return Offer(
        width=width_of(spec),
        rank=max((size for group, size in spec.sizes if "rank" in group), default=0),
        macs=manifest.macs,
        bytes_down=sum(ref.size_bytes for ref in sent_blobs(planned.task)),
        need_bytes=need_bytes(manifest, recipe.at_once),
        step_s=None if predicted is None else predicted.step_s,
    )


def round_cost(
    plan: Sequence[Planned], replies: Mapping[str, Reply], manifest: Callable[[Structure], Manifest]
) -> dict[str, float]:
    """macs: of one prediction, mean over all samples; bytes_down, bytes_up: of weights and updates, over all devices.

    Artifacts and frozen tensors are left out, because a device fetches them once.
    """
    macs = samples = down = up = 0
    for planned in plan:
        reply = replies.get(planned.task.task)
        if reply is None or reply.update is None:
            continue
        task, update = planned.task, reply.update
        samples += update.stats.samples
        macs += update.stats.samples * manifest(planned.assignment.structure).macs
        down += sum(ref.size_bytes for ref in sent_blobs(task))
        up += 0 if update.tensors is None else update.tensors.size_bytes
    if not samples:
        return {}
    return {"macs": macs / samples, "bytes_down": float(down), "bytes_up": float(up)}
