"""What the server is told of a task: what came of it, or why nothing did."""

import logging

from msgspec import structs

from fedwright.device_runtime import facts
from fedwright.protocol.errors import BadArtifact, BadBlob, FedwrightError, OverBudget, PolicyRefused
from fedwright.protocol.messages import BlobRef, Refusal, Stats, Task, Update

log = logging.getLogger(__name__)


def update_of(task: Task, stats: Stats, tensors: BlobRef | None, traffic: tuple[int, int]) -> Update:
    """The update of a task that is done; traffic: bytes up and down since the agent's start."""
    stats = structs.replace(
        stats,
        # The process that trained says its own.
        peak_rss_bytes=stats.peak_rss_bytes + facts.peak_rss_bytes(),
        bytes_up=traffic[0],
        bytes_down=traffic[1],
    )
    return Update(task=task.task, round=task.round, stats=stats, tensors=tensors)


def refusal_of(task: str, err: BaseException) -> Refusal:
    """The refusal that an error means; one that nobody foresaw is logged in full."""
    if isinstance(err, OverBudget):
        return Refusal(task, "over_budget", str(err), need_bytes=err.need_bytes, free_bytes=err.free_bytes)
    if isinstance(err, MemoryError):
        return Refusal(task, "over_budget", "ran out of memory while training", free_bytes=facts.free_bytes())
    if isinstance(err, BadArtifact):
        return Refusal(task, "bad_artifact", str(err))
    if isinstance(err, BadBlob):
        return Refusal(task, "bad_blob", str(err))
    if isinstance(err, PolicyRefused):
        return Refusal(task, "failed", str(err), rule=err.rule, least=err.least)
    if not isinstance(err, FedwrightError):
        log.error("the task failed", exc_info=err)
    return Refusal(task, "failed", f"{type(err).__name__}: {err}"[:500])
