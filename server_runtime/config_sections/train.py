"""The section [train] of a config: how devices train in every round."""

from dataclasses import dataclass, field

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import check_range, hint
from fedwright.server_runtime.blocks.packing import Packing
from fedwright.server_runtime.blocks.rate_schedule import RateSchedule
from fedwright.server_runtime.blocks.trained_part import EVERYTHING, check_trainable
from fedwright.server_runtime.spec import Optimizer


@dataclass(frozen=True)
class TrainSection:
    """The recipe that every device follows."""

    epochs: int = field(default=1, metadata=hint("passes over the device's own data per round"))
    steps: int | None = field(default=None, metadata=hint("or: how many batches per round, the same on every device"))
    batch: int = field(default=32, metadata=hint("samples per step"))
    learning_rate: float = field(default=0.05, metadata=hint("step size on the device"))
    trainable: str | tuple[str, ...] = field(
        default=EVERYTHING,
        metadata=hint("all, head, bias, last-2 (layers), lora-8 (rank), or patterns such as ['layer4.*']"),
    )
    frozen: Packing = field(default="float32", metadata=hint("how what does not train is stored: float32, int8, int4"))
    recompute: bool = field(
        default=False,
        metadata=hint("make cheap activations again instead of keeping them: the same numbers in less memory"),
    )
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: RateSchedule = field(default_factory=RateSchedule)

    def __post_init__(self) -> None:
        """Check values."""
        check_trainable(self.trainable)
        if self.frozen != "float32" and self.trainable == EVERYTHING:
            raise ConfigError(f"frozen is {self.frozen!r} but all of the model trains; set trainable too")
        check_range("epochs", self.epochs, low=1, high=100_000)
        if self.steps is not None:
            check_range("steps", self.steps, low=1, high=100_000_000)
        check_range("batch", self.batch, low=1, high=65_536)
        check_range("learning_rate", self.learning_rate, above=0, high=100)
        check_range("optimizer.momentum", self.optimizer.momentum, low=0, high=1)
        check_range("optimizer.weight_decay", self.optimizer.weight_decay, low=0)
        check_range("optimizer.beta1", self.optimizer.beta1, low=0, high=1)
        check_range("optimizer.beta2", self.optimizer.beta2, low=0, high=1)
        check_range("optimizer.eps", self.optimizer.eps, above=0)
        if self.optimizer.clip_norm is not None:
            check_range("optimizer.clip_norm", self.optimizer.clip_norm, above=0)
