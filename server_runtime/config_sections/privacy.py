"""The section [privacy] of a config: differential privacy of the models that a run gives out."""

from dataclasses import dataclass, field, fields
from typing import Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import check_range, hint

Kind = Literal["none", "central", "distributed", "example"]


@dataclass(frozen=True)
class PrivacySection:
    """What is hidden of whom, and how well."""

    kind: Kind = field(
        default="none",
        metadata=hint(
            "central: hides a device from who sees models; distributed: also from the server, noise on the devices; "
            "example: hides each example, noise on the device"
        ),
    )
    epsilon: float | None = field(default=None, metadata=hint("the run stops before it has told more than this"))
    delta: float = field(default=1e-5, metadata=hint("chance that epsilon does not hold; far below 1 / members"))
    clip: float = field(default=1.0, metadata=hint("largest norm of a device's change, or of an example's gradient"))
    noise_multiplier: float | None = field(
        default=None, metadata=hint("noise as a multiple of clip; absent: what epsilon asks for (not with example)")
    )
    quantile: float | None = field(
        default=None, metadata=hint("central: the clip moves to where this share of changes is shorter, such as 0.5")
    )
    clip_rate: float = field(default=0.2, metadata=hint("how fast the clip moves"))

    def __post_init__(self) -> None:
        """Check values."""
        if self.epsilon is not None:
            check_range("epsilon", self.epsilon, above=0, high=1000)
        check_range("delta", self.delta, above=0, high=0.1)
        check_range("clip", self.clip, above=0, high=1e6)
        check_range("clip_rate", self.clip_rate, above=0, high=2)
        if self.noise_multiplier is not None:
            check_range("noise_multiplier", self.noise_multiplier, above=0, high=1e4)
        if self.quantile is not None:
            check_range("quantile", self.quantile, above=0, high=0.99)
            if self.kind != "central":
                raise ConfigError("quantile moves the clip of kind = 'central'; leave it out, or set that kind")
        if self.kind == "none" and any(getattr(self, one.name) != one.default for one in fields(self)):
            raise ConfigError(
                "kind is 'none' but other settings are given; set kind to 'central', 'distributed' or 'example'"
            )
        if self.kind == "example" and self.noise_multiplier is None:
            raise ConfigError("noise_multiplier is absent; kind = 'example' needs one, such as 1.0")
        if self.kind in ("central", "distributed") and self.noise_multiplier is None and self.epsilon is None:
            raise ConfigError("noise_multiplier and epsilon are both absent; give one of them")
