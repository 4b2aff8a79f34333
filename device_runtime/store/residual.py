"""Error feedback: what rounding and sparsity left out of a delta is kept and added to the next one."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.device_runtime.store.unconfirmed import UnconfirmedTensors
from fedwright.protocol.artifact import MEASURED
from fedwright.protocol.messages import Task

if TYPE_CHECKING:
    from fedwright.device_runtime.train.base import Tensors


class ErrorFeedback:
    """What is owed of one structure in one run; another model or run starts without."""

    def __init__(self, folder: Path) -> None:
        self._owed = UnconfirmedTensors(folder, "residual")

    def encode(self, task: Task, result: "Tensors", masks: "Tensors | None" = None) -> bytes:
        """A task's result as the blob to send, in the form the task asks for; masks: which entries had come.

        Masks change from round to round, so what rounding leaves out of masked entries is not kept. Class means, their
        counts and public logits are no changes: they go as they are, because a later round does not make up for them.
        """
        from fedwright.protocol import deltas

        returns = task.returns
        if returns.masked and masks:
            return deltas.encode(result, codec=returns.codec, keep=masks, implied=True, exact=MEASURED)
        lossless = returns.codec == "float32" and returns.keep_ratio == 1.0
        if returns.weights != "delta" or lossless:
            return deltas.encode(result)
        keep = None if returns.keep_ratio == 1.0 else returns.keep_ratio
        about = {"artifact": task.artifact.sha256}
        if task.run_identity is not None:
            about["run"] = task.run_identity
        blob, left_out = deltas.encode_with_feedback(
            result, self._owed.load(about), codec=returns.codec, keep=keep, exact=MEASURED
        )
        self._owed.propose(task.task, left_out, about)
        return blob

    def settle(self, task: str, *, used: bool) -> None:
        """The server has answered: what it used is not owed any more, what it did not use was never sent."""
        self._owed.settle(task, used=used)
