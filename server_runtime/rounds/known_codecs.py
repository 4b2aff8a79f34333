"""Changes come as the device's agent can pack them: one of an earlier release is asked for what it knows."""

from msgspec import structs

from fedwright.protocol.field_types import INSTEAD
from fedwright.protocol.messages import Returns
from fedwright.server_runtime.fleet.registry import Registry
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.pooled_tasks import EdgeOf


class KnownCodecs:
    """What each device is asked for; says once of each that it is not what the run would have."""

    def __init__(self, registry: Registry, edge_of: EdgeOf, observe: events.Observer) -> None:
        self._registry = registry
        self._edge_of = edge_of
        self._observe = observe
        self._told: set[tuple[str, str]] = set()

    def __call__(self, device: str, returns: Returns) -> Returns:
        """The returns with a codec that the device knows, and the edge on its way, which reads its tasks."""
        codec = returns.codec
        if codec not in INSTEAD or returns.weights != "delta":
            return returns
        edge = self._edge_of(device)
        without = [name for name in (device, edge) if name is not None and not self._knows(name, codec)]
        if not without:
            return returns
        if (device, codec) not in self._told:
            self._told.add((device, codec))
            text = f"{without[0]} runs an earlier release, which does not know {codec}, so that"
            text += f" {INSTEAD[codec]} is asked of {device}; upgrade {without[0]}"
            self._observe(events.Warned(text, device, "earlier release"))
        return structs.replace(returns, codec=INSTEAD[codec])

    def _knows(self, name: str, codec: str) -> bool:
        member = self._registry.known(name)
        return member is None or codec in member.report.codecs
