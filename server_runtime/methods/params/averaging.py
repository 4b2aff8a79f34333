"""Settings of methods that average whole models."""

from dataclasses import dataclass, field

from fedwright.protocol.support.settings import check_range, hint


@dataclass(frozen=True)
class FedAvgMParams:
    """server_rate: η, momentum: β."""

    server_rate: float = field(default=1.0, metadata=hint("step size of the server"))
    momentum: float = field(default=0.9, metadata=hint("how much of the server's last step stays in the next"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("server_rate", self.server_rate, above=0)
        check_range("momentum", self.momentum, low=0, high=1)


@dataclass(frozen=True)
class AdaptiveParams:
    """server_rate: η, beta1: β₁, beta2: β₂, tau: τ of Algorithm 2."""

    server_rate: float = field(default=0.03, metadata=hint("step size of the server"))
    beta1: float = field(default=0.9, metadata=hint("memory of the mean change"))
    beta2: float = field(default=0.99, metadata=hint("memory of its square"))
    tau: float = field(default=1e-3, metadata=hint("how adaptive the server is; smaller is more"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("server_rate", self.server_rate, above=0)
        check_range("beta1", self.beta1, low=0, high=1)
        check_range("beta2", self.beta2, low=0, high=1)
        check_range("tau", self.tau, above=0)


@dataclass(frozen=True)
class ScaffoldParams:
    """server_rate: η_g."""

    server_rate: float = field(default=1.0, metadata=hint("step size of the server"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("server_rate", self.server_rate, above=0)


@dataclass(frozen=True)
class PrivateLayersParams:
    """They have no parameters of their own."""


@dataclass(frozen=True)
class PerFedAvgParams:
    """inner_rate: α; β is the learning rate of [train]."""

    inner_rate: float = field(default=0.01, metadata=hint("length of the step by which a device makes a model its own"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("inner_rate", self.inner_rate, above=0)


@dataclass(frozen=True)
class PFedMeParams:
    """strength: λ, inner_steps: K, rate: η, mixing: β; the personal learning rate is that of [train]."""

    strength: float = field(default=15.0, metadata=hint("how near a personal model stays to the common one"))
    inner_steps: int = field(default=5, metadata=hint("steps towards a personal model before the common one moves"))
    rate: float = field(default=0.03, metadata=hint("how far it then moves, times strength; at most 1 together"))
    mixing: float = field(default=1.0, metadata=hint("how far the server follows the mean of the devices"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("strength", self.strength, above=0)
        check_range("inner_steps", self.inner_steps, low=1, high=1000)
        check_range("rate", self.rate, above=0)
        check_range("rate * strength", self.rate * self.strength, above=0, high=1)
        check_range("mixing", self.mixing, above=0)
