"""What can be set of FRAMP, with the switches of its ablations."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import check_range


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True)
class FrampParams:
    """sizes: γ. align: λ. server_rate: β. own: ||h||². noise: the paper's a."""

    sizes: tuple[float, ...] = field(
        default=(1.0, 0.25, 0.0625, 0.015625), metadata=_help("share of the entries that a device may have")
    )
    choose: Literal["in_turn", "budget"] = field(
        default="in_turn", metadata=_help("in_turn by the number in the device's id, or budget: the largest that fits")
    )
    granularity: Literal["element", "channel"] = field(
        default="element", metadata=_help("single entries (less traffic), or channels (also less memory and compute)")
    )
    layerwise: bool = field(default=False, metadata=_help("choose entries in each layer on its own"))
    least: float = field(default=0.5, metadata=_help("part of its own share that every layer keeps, 0 to 1"))
    mask_gradient: bool = field(default=False, metadata=_help("gradients through the mask as in FIARSE"))
    project: int = field(default=0, metadata=_help("width of a learnt projection of the written weights; 0 = none"))
    align: float = field(default=0.7, metadata=_help("weight of the prototype term; 0 leaves it out"))
    personal: bool = field(default=True, metadata=_help("false writes the same model for everyone"))
    describe: Literal["features", "updated", "classes", "one_hot"] = field(
        default="features",
        metadata=_help("random features of the data, the same but learnt on, its classes, or only which device it is"),
    )
    update_every: int = field(default=10, metadata=_help("rounds between updates of descriptors that are learnt"))
    devices: int = field(default=128, metadata=_help("length of one-hot descriptors"))
    hidden: int = field(default=64, metadata=_help("width of the hypernetwork"))
    server_rate: float = field(default=1.0, metadata=_help("learning rate of the hypernetwork; at most 1"))
    own: float = field(default=1.0, metadata=_help("how far a model follows its own device beside following all"))
    disturb: Literal["none", "noise", "rotation"] = field(default="none", metadata=_help("what is done to prototypes"))
    noise: float = field(default=0.1, metadata=_help("standard deviation of the noise, as a share of the norm"))

    def __post_init__(self) -> None:
        """Check values."""
        if not self.sizes or not all(0 < size <= 1 for size in self.sizes):
            raise ConfigError(f"sizes is {list(self.sizes)} but needs numbers above 0 and up to 1")
        check_range("least", self.least, low=0, high=1)
        for name in ("align", "project", "noise"):
            check_range(name, getattr(self, name), low=0)
        for name in ("hidden", "devices", "update_every"):
            check_range(name, getattr(self, name), low=1)
        for name in ("server_rate", "own"):
            check_range(name, getattr(self, name), above=0)
