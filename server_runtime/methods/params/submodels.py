"""Settings of methods whose devices train the whole of one model or a part of it."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import check_range, hint


@dataclass(frozen=True)
class Levels:
    """Sizes that devices may have, and which device gets which.

    in_turn: by the number at the end of a device's id (without one, drawn from the id), or the next smaller one that
    fits its budget. budget: the largest that fits.
    """

    sizes: tuple[float, ...] = field(
        default=(1.0, 0.5, 0.25, 0.125, 0.0625), metadata=hint("share of the model that a device may have")
    )
    by: Literal["width", "params"] = field(default="width", metadata=hint("sizes count channels, or parameters"))
    choose: Literal["in_turn", "budget"] = field(
        default="in_turn",
        metadata=hint("in_turn by the number in the device's id, or budget: the largest that a device can do"),
    )

    def __post_init__(self) -> None:
        """Check values."""
        if not self.sizes:
            raise ConfigError("sizes is empty; give at least one such as 1.0")
        for size in self.sizes:
            if not 0 < size <= 1:
                raise ConfigError(f"sizes has {size} but a size is above 0 and at most 1")


@dataclass(frozen=True)
class FedAvgParams:
    """width: of the model that everyone trains, for fleets whose smallest device cannot train it all."""

    width: float = field(default=1.0, metadata={"help": "share of the channels that everyone's model has"})

    def __post_init__(self) -> None:
        """Check values."""
        check_range("width", self.width, above=0, high=1)


@dataclass(frozen=True)
class MaskedParams:
    """It has no parameters of its own."""


@dataclass(frozen=True)
class FedProxParams:
    """mu: the paper's µ."""

    mu: float = field(default=0.01, metadata={"help": "weight of the proximal term; 0 is FedAvg"})

    def __post_init__(self) -> None:
        """Check values."""
        check_range("mu", self.mu, low=0)


@dataclass(frozen=True)
class HeteroFLParams:
    """levels: the paper's rates a to e. masked: cross-entropy over the device's own classes only."""

    levels: Levels = field(default_factory=Levels)
    masked: bool = field(default=True, metadata={"help": "leave classes that a device lacks out of its loss"})
    scaler: bool = field(default=True, metadata={"help": "divide hidden activations by the width while training"})


@dataclass(frozen=True)
class FedRolexParams:
    """levels: the paper's capacities β."""

    levels: Levels = field(default_factory=Levels)


@dataclass(frozen=True)
class FedDropoutParams:
    """levels: the share of channels that is kept."""

    levels: Levels = field(default_factory=lambda: Levels(sizes=(0.75,)))


@dataclass(frozen=True)
class ScaleFLParams:
    """widths, exits: of each level, the same number of both. distill: γ, temperature: T."""

    widths: tuple[float, ...] = field(default=(1.0, 0.75, 0.5), metadata={"help": "width of each level"})
    exits: tuple[int, ...] = field(default=(3, 2, 1), metadata={"help": "depth of each level, in exits"})
    distill: float = field(default=0.05, metadata={"help": "weight of the last exit's lesson; 0 = none"})
    temperature: float = field(default=3.0, metadata={"help": "softens what exits teach"})
    distill_after: int = field(default=2, metadata={"help": "rounds before exits begin to teach"})

    def __post_init__(self) -> None:
        """Check values."""
        Levels(self.widths)
        if len(self.widths) != len(self.exits):
            raise ConfigError(
                f"there are {len(self.widths)} widths but {len(self.exits)} exits; give one of each per level"
            )
        check_range("distill", self.distill, low=0)
        check_range("temperature", self.temperature, above=0)
        check_range("distill_after", self.distill_after, low=0)


@dataclass(frozen=True)
class FiarseParams:
    """sizes: the paper's γ. server_rate: the step size of the server."""

    sizes: tuple[float, ...] = field(
        default=(1.0, 0.25, 0.0625, 0.015625), metadata={"help": "share of the entries that a device may keep"}
    )
    server_rate: float = field(default=1.0, metadata={"help": "how far the server follows the mean change"})

    def __post_init__(self) -> None:
        """Check values."""
        check_range("server_rate", self.server_rate, above=0)
        if not self.sizes or not all(0 < size <= 1 for size in self.sizes):
            raise ConfigError(f"sizes is {list(self.sizes)} but needs numbers above 0 and up to 1")
