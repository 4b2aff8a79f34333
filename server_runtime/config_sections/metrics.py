"""The section [metrics] of a config: whether Prometheus may read how a server or an edge does."""

from dataclasses import dataclass, field

from fedwright.protocol.support.metrics import parse_listen
from fedwright.protocol.support.settings import hint


@dataclass(frozen=True)
class MetricsSection:
    """Figures for Prometheus, with /healthz and /readyz beside them."""

    listen: str = field(
        default="", metadata=hint("where: '9100' is this machine alone, '0.0.0.0:9100' the network; empty: off")
    )

    def __post_init__(self) -> None:
        """Check values."""
        if self.listen:
            parse_listen(self.listen)
