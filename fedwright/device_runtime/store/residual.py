"""Error feedback: what rounding and sparsity left out of a delta is kept and added to the next one.

A residual counts only once the server has used the update it belongs to: until then the one before it stays, so that
a task that is done again after a crash starts from the same place.
"""

from pathlib import Path

from fedwright.device_runtime.train.base import Tensors
from fedwright.protocol import deltas, tensors
from fedwright.protocol.artifact import MEASURED
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.files import replace_file
from fedwright.protocol.messages import Task


class Residual:
    """Two files in the device's folder: the residual in force, and the one that waits for an acknowledgement."""

    def __init__(self, folder: Path) -> None:
        self._kept = folder / "residual"
        self._next = folder / "residual.next"

    def encode(self, task: Task, result: Tensors, masks: Tensors | None = None) -> bytes:
        """A task's result as the blob to send, in the form the task asks for; masks: which entries had come.

        Masks change from round to round, so what rounding leaves out of masked entries is not kept. Class means, their
        counts and public logits are no changes: they go as they are, because a later round does not make up for them.
        """
        returns = task.returns
        if returns.masked and masks:
            return deltas.encode(result, codec=returns.codec, keep=masks, implied=True, exact=MEASURED)
        lossless = returns.codec == "float32" and returns.keep_ratio == 1.0
        if returns.weights != "delta" or lossless:
            return deltas.encode(result)
        keep = None if returns.keep_ratio == 1.0 else returns.keep_ratio
        blob, left_out = deltas.encode_with_feedback(
            result, self._load(task), codec=returns.codec, keep=keep, exact=MEASURED
        )
        replace_file(self._next, tensors.save(left_out, {"artifact": task.artifact.sha256}))
        return blob

    def settle(self, *, used: bool) -> None:
        """The server has answered: what it used is not owed any more, what it did not use was never sent."""
        if used and self._next.exists():
            self._next.replace(self._kept)
        self._next.unlink(missing_ok=True)

    def _load(self, task: Task) -> Tensors:
        """The residual if it belongs to the same structure; another model starts without one."""
        if not self._kept.exists():
            return {}
        try:
            same = tensors.metadata(self._kept).get("artifact") == task.artifact.sha256
            return tensors.load(self._kept) if same else {}
        except BadBlob:
            return {}
