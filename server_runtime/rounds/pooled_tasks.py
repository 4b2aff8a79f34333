"""Which updates an edge may put together on their way, and what a method gets when it did."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import structs

from fedwright.protocol.field_types import MOST_COUNT
from fedwright.protocol.messages import Part, Pool, Stats, Update
from fedwright.server_runtime.methods.base import CheckedUpdate, Method, Tensors
from fedwright.server_runtime.rounds.store.base import Planned, Position, Reply

EdgeOf = Callable[[str], str | None]
"""The edge that a device is reached through, or that it is itself, if any."""


@dataclass(frozen=True)
class PoolTerms:
    """clip_norm: largest norm of one device's change. class_means: edges get class means too, for their exchange.

    norm_factor: largest size of one device's change, as a multiple of the median of its pool.
    """

    clip_norm: float | None = None
    class_means: bool = False
    norm_factor: float | None = None


def with_pools(
    plan: Sequence[Planned], method: Method, edge_of: EdgeOf, *, position: Position, terms: PoolTerms
) -> list[Planned]:
    """The plan, in which tasks that differ in nothing but the device share a pool at the edge they go to."""
    by = method.pools_by()
    if by is None:
        return list(plan)
    keys = [_key(planned, edge_of(planned.device), position) for planned in plan]
    sizes = Counter(keys)
    edges = sorted({key[0] for key in keys if key is not None})
    pooled = []
    for planned, key in zip(plan, keys, strict=True):
        if key is None:
            pooled.append(planned)
            continue
        edge, name = key
        class_means = terms.class_means and not planned.task.returns.class_means
        # Clusters are made of what devices trained first; what is passed on later goes to whole ones.
        pool = Pool(name, edge, sizes[key], by, terms.clip_norm, class_means, whole=position.stage > 0)
        most = planned.assignment.most_samples
        pool = structs.replace(pool, most_samples=most, norm_factor=terms.norm_factor)
        peers = [other for other in edges if other != edge]
        if (terms.class_means and peers) or planned.device == edge:
            pool = structs.replace(pool, stage=_digest(planned.task.run_key, position), peers=peers)
        pooled.append(_pooled(planned, pool))
    return pooled


def _key(planned: Planned, edge: str | None, position: Position) -> tuple[str, str] | None:
    """The edge and the name of a task's pool; None when its update must come by itself."""
    assignment, task = planned.assignment, planned.task
    if edge is None or task.returns.weights != "delta" or task.returns.logits:
        return None
    alike = (task.run_key, position, edge, task.artifact.sha256, task.weights.sha256, assignment.marks, task.returns)
    return edge, _digest(*alike)


def _digest(*parts: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:32]


def _pooled(planned: Planned, pool: Pool) -> Planned:
    """The task with its pool; the device is asked for class means, the method's own wishes stay as they are."""
    task = structs.replace(planned.task, pool=pool)
    if pool.class_means:
        task = structs.replace(task, returns=structs.replace(task.returns, class_means=True))
    return replace(planned, task=task)


def is_pool(edge: str, update: Update, plan: Sequence[Planned]) -> bool:
    """Whether these tasks were sent to this edge as one pool, and each is in the update once."""
    pools = {None if planned.task.pool is None else planned.task.pool.key for planned in plan}
    ours = all(planned.task.pool is not None and planned.task.pool.edge == edge for planned in plan)
    return (
        ours
        and len(pools) == 1
        and len({part.task for part in update.parts}) == len(plan)
        and (update.task == update.parts[0].task)
    )


def merged_tasks(replies: Mapping[str, Reply]) -> set[str]:
    """Tasks whose change lies in the update of another."""
    updates = [reply.update for reply in replies.values() if reply.update is not None]
    return {part.task for update in updates for part in update.parts if part.task != update.task}


def checked_update(
    planned: Planned, update: Update, values: Tensors, *, weight: float = 1.0, devices: Sequence[str] = ()
) -> CheckedUpdate:
    """What a method folds in: one device's change, or the mean of several with the weight of all of them."""
    pool = planned.task.pool
    if not update.parts:
        voices = update.devices if pool is not None and pool.edge == planned.device and pool.by == "devices" else 1
        return CheckedUpdate(
            values, update.stats, planned.assignment, weight * voices, (update.task,), (planned.device,)
        )
    by = planned.task.sum.by if planned.task.sum is not None else "samples" if pool is None else pool.by
    voices = len(update.parts) if by == "devices" else 1
    tasks = tuple(part.task for part in update.parts)
    stats, names = total(update.parts), tuple(devices)
    return CheckedUpdate(values, stats, planned.assignment, weight * voices, tasks, names, update.cluster)


def total(parts: Sequence[Part]) -> Stats:
    """The figures of several devices as one; whatever each claims, the host can read their sums."""
    stats = [part.stats for part in parts]

    def summed(name: str) -> int:
        whole: int = sum(getattr(s, name) for s in stats)
        return min(MOST_COUNT, whole)

    return Stats(
        samples=summed("samples"),
        steps=summed("steps"),
        train_s=max(s.train_s for s in stats),
        cpu_s=sum(s.cpu_s for s in stats),
        peak_rss_bytes=max(s.peak_rss_bytes for s in stats),
        loss_first=_mean(stats, "loss_first"),
        loss_last=_mean(stats, "loss_last"),
        holdout=summed("holdout"),
        correct_before=_sum(stats, "correct_before"),
        correct_after=_sum(stats, "correct_after"),
        task_s=max(s.task_s for s in stats),
        bytes_up=summed("bytes_up"),
        bytes_down=summed("bytes_down"),
    )


def _mean(stats: Sequence[Stats], name: str) -> float | None:
    values = [getattr(s, name) for s in stats if getattr(s, name) is not None]
    return sum(values) / len(values) if values else None


def _sum(stats: Sequence[Stats], name: str) -> int | None:
    values = [getattr(s, name) for s in stats if getattr(s, name) is not None]
    return min(MOST_COUNT, sum(values)) if values else None
