"""The section [update] of a config: how updates travel, what is believed of them and how they are put together."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.support.settings import check_range, hint
from fedwright.server_runtime.blocks.robust import Combine, Kind


@dataclass(frozen=True)
class UpdateSection:
    """How updates travel and how they are put together."""

    codec: Literal["float32", "bf16", "int8"] = field(
        default="float32", metadata=hint("float32, bf16 or int8; what rounding leaves out is sent in the next round")
    )
    model_codec: Literal["float32", "bf16"] = field(
        default="float32", metadata=hint("float32 or bf16: how models travel to the devices; the server keeps float32")
    )
    keep_ratio: float = field(default=1.0, metadata=hint("share of the largest changes to send; 1.0 sends all"))
    clip_norm: float | None = field(default=None, metadata=hint("largest norm that one device's change may have"))
    norm_factor: float = field(
        default=5.0, metadata=hint("largest norm of a change, as a multiple of its round's median; 0 = no limit")
    )
    weight_cap: float = field(
        default=10.0, metadata=hint("most samples a device counts for, as a multiple of the median; 0 = no limit")
    )
    combine: Kind = field(
        default="mean",
        metadata=hint(
            "mean, or where devices may be hostile: majority, multi_krum, krum, similarity, trimmed_mean, median, "
            "norm_bound"
        ),
    )
    trim_ratio: float = field(default=0.1, metadata=hint("share that trimmed_mean leaves out at each end"))
    hostile_ratio: float = field(
        default=0.25, metadata=hint("share of devices that majority, krum and multi_krum may leave out")
    )
    evaluate: bool = field(default=True, metadata=hint("devices measure the model before and after they train it"))
    class_means: bool = field(
        default=False, metadata=hint("devices send class means too, to edges that exchange", was="features")
    )

    def __post_init__(self) -> None:
        """Check values."""
        check_range("keep_ratio", self.keep_ratio, above=0, high=1)
        if self.clip_norm is not None:
            check_range("clip_norm", self.clip_norm, above=0)
        check_range("norm_factor", self.norm_factor, low=0)
        check_range("weight_cap", self.weight_cap, low=0)
        self.combination()

    def combination(self) -> Combine:
        """As the averages read it."""
        return Combine(self.combine, self.trim_ratio, self.hostile_ratio)
