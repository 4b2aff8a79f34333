"""Settings of methods whose devices prune a common model to parts of their own."""

from dataclasses import dataclass, field

from fedwright.protocol.support.settings import check_range, hint
from fedwright.server_runtime.methods.params.submodels import Levels


@dataclass(frozen=True)
class PruningParams:
    """prune_ratio: r_p. least: the final density r_target. loss_below: when a device is ready, in place of acc_th."""

    prune_ratio: float = field(default=0.2, metadata=hint("share of what a device has that one pruning takes off"))
    least: float = field(default=0.5, metadata=hint("share of the model below which nobody is pruned"))
    loss_below: float = field(default=0.7, metadata=hint("training loss from which on a device's model is pruned"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("prune_ratio", self.prune_ratio, above=0, high=0.95)
        check_range("least", self.least, above=0, high=1)
        check_range("loss_below", self.loss_below, low=0)


@dataclass(frozen=True)
class TailorFLParams:
    """levels: what a device's resources allow. memory: of a filter's importance. alike: weight of similar devices."""

    levels: Levels = field(default_factory=lambda: Levels(sizes=(1.0, 0.5, 0.25)))
    memory: float = field(default=0.5, metadata=hint("how much of a channel's importance stays from round to round"))
    alike: float = field(default=0.5, metadata=hint("weight of devices with similar data in the choice of channels"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("memory", self.memory, low=0, high=0.99)
        check_range("alike", self.alike, low=0, high=1)
