"""Personal layers: tensors of a model that a device keeps to itself and trains on from task to task.

What a task made of them counts once the server has used its update, as with error feedback: until then the layers
before it stay, so that a task that is done again after a crash starts from the same place.
"""

from collections.abc import Sequence
from pathlib import Path

from fedwright.device_runtime.train.base import Tensors
from fedwright.protocol import tensors
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.files import replace_file
from fedwright.protocol.messages import Task


class PersonalLayers:
    """Two files in the device's folder: the layers in force, and those that wait for an acknowledgement."""

    def __init__(self, folder: Path) -> None:
        self._kept = folder / "personal"
        self._next = folder / "personal.next"

    def over(self, received: Tensors, names: Sequence[str], *, run: str) -> Tensors:
        """The model as it came, with this device's own layers in their places; those of another shape do not count."""
        unknown = sorted(set(names) - received.keys())
        if unknown:
            raise BadBlob(f"the task makes {unknown[0]} a personal layer but the model has none of that name")
        kept = self._load(run) if names else {}
        fits = [name for name in names if name in kept and kept[name].shape == received[name].shape]
        return received | {name: kept[name].astype(received[name].dtype) for name in fits}

    def keep(self, task: Task, layers: Tensors) -> None:
        """What a task made of the layers."""
        replace_file(self._next, tensors.save(layers, {"run": task.run, "task": task.task}))

    def settle(self, task: str, *, used: bool) -> None:
        """The server has answered: what it did not use was never learned."""
        if used and self._next.exists() and _about(self._next, "task") == task:
            self._next.replace(self._kept)
        self._next.unlink(missing_ok=True)

    def _load(self, run: str) -> Tensors:
        """The layers if they are of this run; another one starts without any."""
        if not self._kept.exists() or _about(self._kept, "run") != run:
            return {}
        try:
            return tensors.load(self._kept)
        except BadBlob:
            return {}


def _about(path: Path, what: str) -> str | None:
    try:
        return tensors.metadata(path).get(what)
    except BadBlob:
        return None
