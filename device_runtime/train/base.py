"""The Trainer interface: what the agent needs of a backend, whichever runtime is underneath."""

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = dict[str, Array]


@dataclass(frozen=True)
class StepResult:
    """Loss of one step (before the update) and how many of the batch were classified right."""

    loss: float
    correct: int


class Interrupt(Protocol):
    """Ends what a runtime is computing, from another thread."""

    def set(self) -> None:
        """What runs ends with an error soon, and so does what is begun before `clear`."""
        ...

    def clear(self) -> None:
        """Runs may begin again."""
        ...


class Predicts(Protocol):
    """A model that can be asked."""

    def predict(self, batch: Tensors) -> tuple[Array, Array]:
        """Logits and embedding in evaluation mode."""
        ...


class Trainer(Predicts, Protocol):
    """One model being trained.

    - `load` MUST accept exactly the manifest's trainable and buffer slots, and MUST reset optimizer state.
    - `step` MUST leave the caller's arrays untouched and MUST accept any batch size from 1 on.
    - `weights` MUST return copies of the trainable and buffer slots, named as in the manifest.
    - `snapshot`/`restore` MUST round-trip weights, optimizer state and the step number exactly.
    """

    def load(self, weights: Tensors) -> None:
        """Start from these weights with a fresh optimizer."""
        ...

    def step(self, batch: Tensors, *, learning_rate: float, seed: int) -> StepResult:
        """One optimizer step on a batch named as in the manifest."""
        ...

    def weights(self) -> Tensors:
        """The present trainable and buffer slots."""
        ...

    def snapshot(self) -> Tensors:
        """All slots, for a checkpoint."""
        ...

    def restore(self, slots: Tensors) -> None:
        """Continue from a snapshot."""
        ...
