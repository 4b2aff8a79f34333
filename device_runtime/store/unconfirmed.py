"""Tensors that a task leaves on its device, which count only once the server has used the task's update.

Until then those before them stay in force, so that a task that is done again after a crash starts from the same place.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from fedwright.protocol.errors import BadBlob
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.tensor_header import metadata

if TYPE_CHECKING:
    from fedwright.device_runtime.train.base import Tensors

TASK = "task"


class UnconfirmedTensors:
    """Two files in the device's folder: the tensors in force, and those that wait for an acknowledgement."""

    def __init__(self, folder: Path, name: str) -> None:
        self._kept = folder / name
        self._next = folder / f"{name}.next"

    def propose(self, task: str, values: "Tensors", about: dict[str, str]) -> None:
        """What a task made; about: what it belongs to."""
        from fedwright.protocol import tensors

        replace_file(self._next, tensors.save(values, {**about, TASK: task}))

    def settle(self, task: str, *, used: bool) -> None:
        """The server has answered a task: what it did not use was never made."""
        if used and _about(self._next).get(TASK) == task:
            self._next.replace(self._kept)
        self._next.unlink(missing_ok=True)

    def load(self, about: dict[str, str]) -> "Tensors":
        """The tensors in force if they belong to this; anything else starts without any."""
        if not about.items() <= _about(self._kept).items():
            return {}
        from fedwright.protocol import tensors

        try:
            return tensors.load(self._kept)
        except BadBlob:
            return {}


def _about(path: Path) -> dict[str, str]:
    try:
        return metadata(path)
    except BadBlob:
        return {}
