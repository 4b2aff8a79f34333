"""Simulated devices on torch: faster where torch's kernels are, the same results but for rounding.

Devices train graphs; here the module behind a graph is known, because the server that made it is in this machine.
"""

from dataclasses import fields
from pathlib import Path

import msgspec

from fedwright.device_runtime.train.torch import TorchTrainer, own_classes, proximal
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.spec import Objective, Structure

# Terms of an objective that are written for torch as well as for graphs.
KNOWN = ("proximal", "masked_classes")


class Structures:
    """What each artifact was built from, on disc, so that every process finds it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, sha256: str, structure: Structure) -> None:
        """Remember an artifact's structure; ConfigError when torch cannot train it."""
        plain = Objective()
        unknown = [
            entry.name
            for entry in fields(Objective)
            if entry.name not in KNOWN and getattr(structure.objective, entry.name) != getattr(plain, entry.name)
        ]
        if unknown:
            raise ConfigError(
                f"the torch backend does not know the objective's {', '.join(unknown)}; "
                f"set simulate.backend = 'portable'"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / sha256).write_bytes(msgspec.json.encode(structure))

    def find(self, sha256: str) -> Structure:
        """The structure of an artifact."""
        return msgspec.json.decode((self._folder / sha256).read_bytes(), type=Structure)


def torch_trainer(structure: Structure) -> TorchTrainer:
    """A trainer that does what the structure's artifact does; side inputs and frozen tensors are given later."""
    objective = structure.objective
    return TorchTrainer(
        zoo.create(structure.spec, seed=0),
        structure.optimizer,
        trainable=structure.trainable,
        penalty=proximal(objective.proximal) if objective.proximal else None,
        shown=own_classes if objective.masked_classes else None,
    )
