"""What Prometheus reads of an edge, when its config or its command says where."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedwright import __version__
from fedwright.protocol.link.base import Link
from fedwright.protocol.support.metrics import About, Endpoint, Figure, Metric, disk_figures, gauge, link_figures

STATES = ("open", "answered", "refused", "recalled", "done")


@dataclass(frozen=True)
class EdgeSnapshot:
    """An edge at a moment, as its own thread saw it. heard_s: when the host was last heard, in seconds since 1970."""

    devices: int = 0
    tasks: Mapping[str, int] = field(default_factory=Counter)
    heard_s: float = 0.0


@dataclass(frozen=True)
class EdgeFigures:
    """Collects the figures of one edge. look: gives what its own thread saw last."""

    look: Callable[[], EdgeSnapshot]
    folder: Path
    up: Link
    down: Link

    def endpoint(self) -> Endpoint:
        """As it is served."""
        return Endpoint(self.collect, self.problem)

    def problem(self) -> str:
        """Why devices cannot be served now; "" when they can."""
        if not self.down.connected:
            return "the broker of the devices is not reached"
        return "" if self.up.connected else "the broker of the host is not reached"

    def collect(self) -> Iterator[Figure]:
        """Everything there is to say now."""
        now = self.look()
        yield About("fedwright_edge_info", "The release of the edge.", {"version": __version__})
        yield gauge("fedwright_edge_devices", "Devices that are here.", now.devices)
        tasks = {state: float(now.tasks.get(state, 0)) for state in STATES}
        yield Metric("fedwright_edge_tasks", "Tasks that the edge keeps, by state.", tasks, "state")
        yield gauge("fedwright_edge_host_seen_timestamp_seconds", "When the host was last heard.", now.heard_s)
        yield from disk_figures(self.folder)
        yield from link_figures(self.up, role="host_")
        yield from link_figures(self.down)
