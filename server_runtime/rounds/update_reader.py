"""The tensors of updates: checked when they come, and kept decoded until they are folded in, while there is room."""

from collections import OrderedDict
from collections.abc import Iterable

from fedwright.protocol import deltas
from fedwright.protocol.artifact import BY_CLASS
from fedwright.protocol.errors import BadUpdate
from fedwright.protocol.messages import Update
from fedwright.server_runtime.fleet.admission import check_hidden, clip_norm, magnitude, read_update
from fedwright.server_runtime.fleet.upload_limits import check_size
from fedwright.server_runtime.methods.base import Tensors
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.size_limits import ChangeSize, held_counts
from fedwright.server_runtime.rounds.store.base import Planned

# Beyond this, updates are decoded again from disk when their turn comes, so that memory does not grow with the fleet.
ROOM_BYTES = 64 * 1024**2
# Models whose magnitudes are remembered: those of a few rounds in flight, not one for each device of a large fleet.
KEPT_MODELS = 64


class UpdateReader:
    """Decodes each update once where it can; `norm_limit` is the largest norm of one device's change."""

    def __init__(self, planner: Planner, *, norm_limit: float | None = None, room_bytes: int = ROOM_BYTES) -> None:
        self.norm_limit = norm_limit
        self._planner = planner
        self._room_bytes = room_bytes
        self._decoded: dict[str, Tensors] = {}
        self._sizes: dict[str, ChangeSize] = {}
        self._reach: OrderedDict[str, dict[str, float]] = OrderedDict()

    def check(self, planned: Planned, update: Update) -> None:
        """Raise BadUpdate or BadBlob unless a method may fold this in, or it waits on its device to be summed."""
        for stats in [part.stats for part in update.parts] or [update.stats]:
            check_hidden(stats, planned.task)
        if planned.task.sum is not None and not update.parts:
            if update.tensors is not None:
                raise BadUpdate("it sent its change although that belongs into a sum; update the agent on the device")
            return
        values = self._decode(planned, update)
        size = sum(value.nbytes for value in values.values())
        self._sizes[update.task] = ChangeSize.of(values)
        if size <= self._room_bytes:
            self._room_bytes -= size
            self._decoded[update.task] = values

    def take(self, planned: Planned, update: Update) -> Tensors:
        """An update's tensors, checked; a change is held to the norm limit."""
        values = self._decoded.pop(update.task, None)
        if values is None:
            return self._decode(planned, update)
        self._room_bytes += sum(value.nbytes for value in values.values())
        return values

    def size(self, planned: Planned, update: Update) -> ChangeSize:
        """How large an update's change is; it is decoded for that only if another process checked it."""
        if update.task not in self._sizes:
            self.check(planned, update)
        return self._sizes[update.task]

    def model_norm(self, planned: Planned) -> float:
        """The norm of the model that a device was sent; that of a small one is 1."""
        sent = deltas.load(self._planner.blobs.path(planned.task.weights.sha256))[0]
        return max(1.0, ChangeSize.of(sent).whole.norm)

    def forget(self, tasks: Iterable[str]) -> None:
        """Let go of what is known of updates that are folded in or left out."""
        for task in tasks:
            self._sizes.pop(task, None)
            values = self._decoded.pop(task, None)
            self._room_bytes += sum(value.nbytes for value in (values or {}).values())

    def _sent(self, sha256: str) -> dict[str, float]:
        """The largest magnitude in each tensor of a model that was sent."""
        if sha256 not in self._reach:
            sent = deltas.load(self._planner.blobs.path(sha256))[0]
            self._reach[sha256] = {name: magnitude(value) for name, value in sent.items()}
            if len(self._reach) > KEPT_MODELS:
                self._reach.popitem(last=False)
        return self._reach[sha256]

    def _decode(self, planned: Planned, update: Update) -> Tensors:
        # What an edge asked for beyond what the method wants ends there; an update that came by itself still has it.
        wanted = planned.assignment.returns
        returns = wanted if update.parts else planned.task.returns
        if update.tensors is None:
            if returns.weights != "none" or returns.class_means or returns.logits:
                raise BadUpdate("it holds no tensors although some were asked for")
            return {}
        manifest = self._planner.manifest(planned.assignment.structure)
        check_size(update.tensors, manifest, planned.task.returns)
        blobs = self._planner.blobs
        sent = deltas.load(blobs.path(planned.task.weights.sha256))[1] if returns.masked else None
        reach = self._sent(planned.task.weights.sha256)
        values = read_update(blobs.path(update.tensors.sha256), manifest, returns, sent=sent, reach=reach)
        if returns.class_means and not wanted.class_means:
            values = {name: value for name, value in values.items() if name not in BY_CLASS}
        values = held_counts(values, planned.assignment.most_samples)
        return clip_norm(values, self.norm_limit) if returns.weights == "delta" else values
