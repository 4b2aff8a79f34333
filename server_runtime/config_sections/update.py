"""The section [update] of a config: how updates travel, what is believed of them and how they are put together."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.secure.graph import LEAST_DEVICES, MOST_THRESHOLD, NEIGHBOURS, THRESHOLD
from fedwright.protocol.secure.roster import MOST_MEMBERS
from fedwright.protocol.support.settings import check_range, hint
from fedwright.server_runtime.blocks.mixing import Mix
from fedwright.server_runtime.blocks.robust import Combine, Kind


@dataclass(frozen=True)
class UpdateSection:
    """How updates travel and how they are put together."""

    codec: Literal["float32", "bf16", "int8", "int4"] = field(
        default="float32", metadata=hint("float32, bf16, int8 or int4; what rounding leaves out is sent the next round")
    )
    model_codec: Literal["float32", "bf16", "int8", "int4"] = field(
        default="float32",
        metadata=hint(
            "float32 or bf16: how models travel to the devices; int8 or int4: as what changed since a device's last one"
        ),
    )
    model_keep_ratio: float = field(
        default=1.0, metadata=hint("share of the largest of these changes to send; the rest follows in later rounds")
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
            "mean, or where devices may be hostile: outliers, majority, multi_krum, krum, similarity, "
            "centred_clipping, trimmed_mean, median, norm_bound"
        ),
    )
    trim_ratio: float = field(default=0.1, metadata=hint("share that trimmed_mean leaves out at each end"))
    hostile_ratio: float = field(
        default=0.25,
        metadata=hint("most devices, as a share, that outliers, majority, krums and mix take to be hostile"),
    )
    mix: Mix = field(
        default="none",
        metadata=hint("before that: neighbours or buckets mixes updates, for data that differs; none does not"),
    )
    evaluate: bool = field(default=True, metadata=hint("devices measure the model before and after they train it"))
    class_means: bool = field(
        default=False, metadata=hint("devices send class means too, to edges that exchange", was="features")
    )
    secure: bool = field(
        default=False, metadata=hint("changes stay on the devices; the server sees sums over several (docs/privacy.md)")
    )
    secure_least: int = field(default=3, metadata=hint("devices that a sum takes; those who train alike are summed"))
    secure_range: float = field(
        default=8.0, metadata=hint("largest entry of a change that a sum has room for; smaller is more exact")
    )
    secure_neighbours: int = field(
        default=NEIGHBOURS, metadata=hint("devices with which each of a large sum shares masks; fewer hide too little")
    )
    secure_threshold: float = field(
        default=THRESHOLD,
        metadata=hint("share of members and neighbours who must stay; more stands up to more of them in league"),
    )

    def __post_init__(self) -> None:
        """Check values."""
        check_range("keep_ratio", self.keep_ratio, above=0, high=1)
        check_range("model_keep_ratio", self.model_keep_ratio, above=0, high=1)
        if self.model_keep_ratio < 1 and self.patch_codec is None:
            raise ConfigError(
                f"model_keep_ratio is {self.model_keep_ratio}, but a model in {self.model_codec} travels whole; set "
                "model_codec to int8 or int4, or leave it out"
            )
        if self.clip_norm is not None:
            check_range("clip_norm", self.clip_norm, above=0)
        check_range("norm_factor", self.norm_factor, low=0)
        check_range("weight_cap", self.weight_cap, low=0)
        check_range("secure_least", self.secure_least, low=LEAST_DEVICES, high=MOST_MEMBERS)
        check_range("secure_range", self.secure_range, above=0, high=1e6)
        check_range("secure_neighbours", self.secure_neighbours, low=NEIGHBOURS, high=MOST_MEMBERS)
        check_range("secure_threshold", self.secure_threshold, low=THRESHOLD, high=MOST_THRESHOLD)
        if self.secure:
            self._check_secure()
        self.combination()

    @property
    def whole_codec(self) -> Literal["float32", "bf16"]:
        """How a model travels to a device that holds none."""
        return "float32" if self.model_codec == "float32" else "bf16"

    @property
    def patch_codec(self) -> Literal["int8", "int4"] | None:
        """How a change of the model travels; None: never."""
        return self.model_codec if self.model_codec in ("int8", "int4") else None

    def _check_secure(self) -> None:
        """Sums are of whole changes as they are, and nobody can look at one of them."""
        for name, value, only in (
            ("codec", self.codec, "float32"),
            ("keep_ratio", self.keep_ratio, 1.0),
            ("combine", self.combine, "mean"),
            ("class_means", self.class_means, False),
        ):
            if value != only:
                raise ConfigError(f"secure is true and {name} is {value!r}, but sums know {only!r} alone; leave it out")

    def combination(self) -> Combine:
        """As the averages read it."""
        return Combine(self.combine, self.trim_ratio, self.hostile_ratio, mix=self.mix)
