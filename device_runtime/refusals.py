"""Why a task came to nothing, as the server is told."""

import logging

from fedwright.device_runtime import facts
from fedwright.protocol.errors import BadArtifact, BadBlob, FedwrightError, OverBudget, PolicyRefused
from fedwright.protocol.messages import Refusal

log = logging.getLogger(__name__)


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
        return Refusal(task, "failed", str(err), rule=err.rule)
    if not isinstance(err, FedwrightError):
        log.error("the task failed", exc_info=err)
    return Refusal(task, "failed", f"{type(err).__name__}: {err}"[:500])
