"""What a round cost the devices that took part: multiply-accumulates and bytes."""

from collections.abc import Callable, Mapping, Sequence

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.task_blobs import own_blobs
from fedwright.server_runtime.rounds.store.base import Planned, Reply
from fedwright.server_runtime.spec import Structure


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
        down += sum(ref.size_bytes for ref in own_blobs(task))
        up += 0 if update.tensors is None else update.tensors.size_bytes
    if not samples:
        return {}
    return {"macs": macs / samples, "bytes_down": float(down), "bytes_up": float(up)}
