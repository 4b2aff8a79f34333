"""The section [engine] of a config: where work is done that need not be done in this process."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import check_range, hint

# A cluster that this machine already belongs to; one of this process alone.
RUNNING, OWN = "auto", "local"


@dataclass(frozen=True)
class EngineSection:
    """Processes of this machine, or those of a Ray cluster; both end with the same bytes."""

    kind: Literal["local", "ray"] = field(
        default="local",
        metadata=hint("'local': this machine; 'ray': a Ray cluster, with fedwright[ray] on each machine"),
    )
    address: str = field(
        default=RUNNING,
        metadata=hint("of Ray: 'auto' finds the one that runs here, host:6379 names one, 'local' starts one"),
    )
    workers: int | None = field(default=None, metadata=hint("how many on Ray; absent: one for each CPU of the cluster"))

    def __post_init__(self) -> None:
        """Check values."""
        if self.workers is not None:
            check_range("workers", self.workers, low=1, high=100_000)
        host, _, port = self.address.rpartition(":")
        if self.address not in (RUNNING, OWN) and not (host and "/" not in host and port.isdigit()):
            raise ConfigError(
                f"address is {self.address!r} but must be 'auto', 'local' or a host and a port, such as 10.0.0.5:6379"
            )
