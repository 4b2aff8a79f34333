"""Settings of HASA."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import check_range
from fedwright.server_runtime.blocks.allocation import Rule, WidthBudget


@dataclass(frozen=True)
class HasaParams:
    """The paper's symbols: B budget, [rmin, rmax] least and most, T passes, g size_share, a smoothing.

    square: the budget counts r² (for CNNs). tolerance: scale until the budget is met so closely, instead of T passes.
    """

    rule: Rule = field(default="hasa", metadata={"help": "hasa, uniform, size, mixed or inverse"})
    budget: float = field(default=0.5, metadata={"help": "mean width over all samples"})
    least: float = field(default=0.2, metadata={"help": "smallest width of any device"})
    most: float = field(default=0.8, metadata={"help": "largest width of any device"})
    square: bool = field(default=False, metadata={"help": "the budget counts squares of widths"})
    passes: int = field(default=2, metadata={"help": "how often widths are scaled to the budget and clipped"})
    tolerance: float | None = field(default=None, metadata={"help": "or: scale until the budget is met so closely"})
    size_share: float = field(default=0.5, metadata={"help": "mixed: how much the number of samples counts"})
    smoothing: float = field(default=0.1, metadata={"help": "added to every count"})
    score: Literal["counts", "pixels", "features"] = field(
        default="counts", metadata={"help": "counts of classes or words, pixels of images, or frozen features"}
    )
    aggregation: Literal["original", "selective"] = field(
        default="selective", metadata={"help": "original: untrained entries count as unchanged; selective: not at all"}
    )
    submodels: Literal["first", "random", "rolling"] = field(
        default="first",
        metadata={
            "help": "which channels: the first, a new random set (as FedDropout) or a moving window (as FedRolex)"
        },
    )
    caps: dict[str, float] = field(
        default_factory=dict, metadata={"help": "largest width by device id or board profile; memory caps all the same"}
    )
    secure_sum: bool = field(
        default=False,
        metadata={"help": "the server sees only sums of counts; 3 devices or more run with --hide-counts"},
    )
    width_step: float = field(
        default=0.0,
        metadata={"help": "widths are rounded down to multiples of this (update.secure needs it); 0 = not"},
    )
    memory_ratio: float = field(default=1.0, metadata={"help": "share of its free memory that a device may use"})

    def __post_init__(self) -> None:
        """Check values."""
        self.limits()
        if self.secure_sum and self.score != "counts":
            raise ConfigError(f"secure_sum adds up counts but score is {self.score!r}; set one of them back")
        check_range("size_share", self.size_share, low=0, high=1)
        check_range("smoothing", self.smoothing, low=0)
        check_range("width_step", self.width_step, low=0, high=0.5)
        check_range("memory_ratio", self.memory_ratio, above=0)
        for name, width in self.caps.items():
            check_range(f"caps.{name}", width, low=self.least, high=1)

    def limits(self) -> WidthBudget:
        """The budget as the allocation reads it."""
        power = 2 if self.square else 1
        return WidthBudget(self.budget, self.least, self.most, power, self.passes, self.tolerance)
