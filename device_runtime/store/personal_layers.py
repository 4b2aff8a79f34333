"""Personal layers: tensors of a model that a device keeps to itself and trains on from task to task."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.device_runtime.store.unconfirmed import UnconfirmedTensors
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import Task

if TYPE_CHECKING:
    from fedwright.device_runtime.train.base import Tensors


class PersonalLayers:
    """The layers of one run at a time."""

    def __init__(self, folder: Path) -> None:
        self._layers = UnconfirmedTensors(folder, "personal")

    def over(self, received: "Tensors", names: Sequence[str], *, run: str) -> "Tensors":
        """The model as it came, with this device's own layers in their places; those of another shape do not count."""
        unknown = sorted(set(names) - received.keys())
        if unknown:
            raise BadBlob(f"the task makes {unknown[0]} a personal layer but the model has none of that name")
        kept = self._layers.load({"run": run}) if names else {}
        fits = [name for name in names if name in kept and kept[name].shape == received[name].shape]
        return received | {name: kept[name].astype(received[name].dtype) for name in fits}

    def keep(self, task: Task, layers: "Tensors") -> None:
        """What a task made of the layers."""
        self._layers.propose(task.task, layers, {"run": task.run_key})

    def settle(self, task: str, *, used: bool) -> None:
        """The server has answered: what it did not use was never learned."""
        self._layers.settle(task, used=used)
