"""What can be set of FRAMP, with the switches of its ablations."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import check_range, hint


@dataclass(frozen=True)
class FrampParams:
    """sizes: γ. align: λ. server_rate: β. own: ||h||². noise: the paper's a."""

    sizes: tuple[float, ...] = field(
        default=(1.0, 0.25, 0.0625, 0.015625), metadata=hint("share of the entries that a device may have")
    )
    choose: Literal["in_turn", "budget"] = field(
        default="in_turn", metadata=hint("in_turn by the number in the device's id, or budget: the largest that fits")
    )
    granularity: Literal["element", "channel"] = field(
        default="element", metadata=hint("single entries (less traffic), or channels (also less memory and compute)")
    )
    layerwise: bool = field(default=False, metadata=hint("choose entries in each layer on its own"))
    least: float = field(default=0.5, metadata=hint("part of its own share that every layer keeps, 0 to 1"))
    mask_gradient: bool = field(default=False, metadata=hint("gradients through the mask as in FIARSE"))
    project: int = field(
        default=0, metadata=hint("width of a learnt projection that writes narrow models in place of masks; 0 = none")
    )
    align: float = field(default=0.7, metadata=hint("weight of the prototype term; 0 leaves it out"))
    align_by: Literal["sum", "mean"] = field(
        default="mean", metadata=hint("distances as a mean per class and dimension, or summed over classes as printed")
    )
    personal: bool = field(default=True, metadata=hint("false writes the same model for everyone"))
    describe: Literal["features", "updated", "classes", "one_hot"] = field(
        default="features",
        metadata=hint("random features of the data, the same but learnt on, its classes, or only which device it is"),
    )
    update_every: int = field(default=10, metadata=hint("rounds between updates of descriptors that are learnt"))
    devices: int = field(default=128, metadata=hint("length of one-hot descriptors"))
    hidden: int = field(default=64, metadata=hint("width of the hypernetwork"))
    server_rate: float = field(default=1.0, metadata=hint("learning rate of the hypernetwork; at most 1"))
    own: float = field(default=1.0, metadata=hint("how far a model follows its own device beside following all"))
    alike: int = field(
        default=0,
        metadata=hint(
            "devices in groups of so many or more that share a descriptor (update.secure needs it); 0 = none"
        ),
    )
    disturb: Literal["none", "noise", "rotation"] = field(default="none", metadata=hint("what is done to prototypes"))
    noise: float = field(default=0.1, metadata=hint("standard deviation of the noise, as a share of the norm"))

    def __post_init__(self) -> None:
        """Check values."""
        if not self.sizes or not all(0 < size <= 1 for size in self.sizes):
            raise ConfigError(f"sizes is {list(self.sizes)} but needs numbers above 0 and up to 1")
        check_range("least", self.least, low=0, high=1)
        for name in ("align", "alike", "project", "noise"):
            check_range(name, getattr(self, name), low=0)
        for name in ("hidden", "devices", "update_every"):
            check_range(name, getattr(self, name), low=1)
        for name in ("server_rate", "own"):
            check_range(name, getattr(self, name), above=0)
