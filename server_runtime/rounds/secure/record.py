"""What the server must not forget of a sum: whom it told what. It is durable before it is told."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from fedwright.protocol.messages import BlobRef, CountTerms, SumAsk
from fedwright.protocol.secure.graph import looked_at, neighbours_of
from fedwright.protocol.secure.roster import digest_of, names_of, unpack_roster


class SumRecord(Struct, frozen=True):
    """One session. tasks: of its members, by device. Each further field is there once that stage has begun.

    counts: what is summed where that is no task's change. sealed, marks: by who shared. parts, signed: masked parts and
    the signatures under them, of those present.
    """

    session: str
    tasks: dict[str, str]
    roster: bytes = b""
    sealed: dict[str, dict[str, bytes]] = {}
    marks: dict[str, dict[str, bytes]] = {}
    parts: dict[str, BlobRef] = {}
    signed: dict[str, bytes] = {}
    counts: CountTerms | None = None

    @property
    def members(self) -> list[str]:
        """All in the roster."""
        return names_of(self.roster)

    @property
    def sharers(self) -> list[str]:
        """Members that have given shares."""
        return sorted(self.sealed)

    @property
    def present(self) -> list[str]:
        """Sharers whose part is in the sum."""
        return sorted(self.parts)

    def ask(self, device: str, stage: str, **more: object) -> SumAsk:
        """What a device is asked in a stage."""
        return SumAsk(self.session, "unsent", stage, self.tasks[device], counts=self.counts, **more)  # type: ignore[arg-type]

    def sealed_for(self, device: str, graph: Mapping[str, frozenset[str]]) -> dict[str, bytes]:
        """The shares that a device's neighbours have given for it."""
        return {owner: self.sealed[owner][device] for owner in sorted(graph[device]) if owner in self.sealed}

    def near(self, device: str, signatures: Mapping[str, bytes], least: int) -> dict[str, bytes]:
        """Those signatures that a device looks at."""
        count = unpack_roster(self.roster).neighbours
        wanted = looked_at(self.members, digest_of(self.roster), device, least, count=count) | {device}
        return {name: signature for name, signature in signatures.items() if name in wanted}

    def graph(self) -> dict[str, frozenset[str]]:
        """Everybody's neighbours."""
        return neighbours_of(self.members, digest_of(self.roster), count=unpack_roster(self.roster).neighbours)


def pack_record(record: SumRecord) -> bytes:
    """As the store keeps it."""
    return msgspec.msgpack.encode(record)


def read_record(data: bytes) -> SumRecord:
    """From the store."""
    return msgspec.msgpack.decode(data, type=SumRecord)
