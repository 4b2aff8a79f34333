"""What the server makes of masked parts once enough of their devices have opened what hides the sum, and only that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedwright.protocol.crypto.x25519 import OwnKey
from fedwright.protocol.errors import ProtocolError
from fedwright.protocol.secure.graph import neighbours_of, threshold
from fedwright.protocol.secure.masks import Words, add_stream
from fedwright.protocol.secure.part import mark, pair_seed, place_of
from fedwright.protocol.secure.roster import Member, digest_of, read_roster, unpack_roster
from fedwright.protocol.secure.shamir import join

MARK_BYTES = 32


@dataclass
class Opening:
    """Takes openings one by one. sharers: who has shared; present: whose parts are in the sum.

    marks: of everybody who has shared, as Part.marks gives them.
    """

    roster: bytes
    sharers: Sequence[str]
    present: Sequence[str]
    marks: Mapping[str, Mapping[str, bytes]]
    _own: dict[str, bytes] = field(default_factory=dict)
    _shares: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def take(self, holder: str, own: bytes, shares: Mapping[str, bytes]) -> None:
        """What a device of the sum has opened; ProtocolError, and none of it counts, when some of it is not true."""
        if holder not in self.present or mark(own) != self.marks[holder].get(holder):
            raise ProtocolError(f"{holder} opened another mask than the one it has promised")
        for owner, share in shares.items():
            if owner not in self.sharers or holder not in self._graph[owner]:
                raise ProtocolError(f"{holder} opened a share of {owner}, which it cannot have")
            promised = self.marks[owner].get(holder, b"")
            start = 0 if owner in self.present else MARK_BYTES
            if mark(share) != promised[start : start + MARK_BYTES]:
                raise ProtocolError(f"{holder} opened a share of {owner} that is not the one that was promised")
        self._own[holder] = own
        for owner, share in shares.items():
            self._shares.setdefault(owner, {})[place_of(self._graph, owner, holder)] = share

    @property
    def lacking(self) -> list[str]:
        """Sharers of whom too little is open yet."""
        return [owner for owner in sorted(self.sharers) if owner not in self._own and not self._has_enough(owner)]

    def total(self, parts: Mapping[str, Words]) -> Words:
        """The sum of what is behind the parts; ProtocolError names the device whose shares are of no secret."""
        total = np.zeros(len(next(iter(parts.values()))), np.uint32)
        for device in sorted(self.present):
            np.add(total, parts[device], out=total)
            add_stream(total, self._own.get(device) or self._joined_mask(device), sign=-1)
        for gone in sorted(set(self.sharers) - set(self.present)):
            own = self._joined_key(gone)
            for other in sorted(self._graph[gone] & set(self.present)):
                seed = pair_seed(own, self._members[other].mask_key, self._digest)
                add_stream(total, seed, sign=-1 if other < gone else 1)
        return total

    def _has_enough(self, owner: str) -> bool:
        return len(self._shares.get(owner, {})) >= self._needed(owner)

    def _needed(self, owner: str) -> int:
        return threshold(len(self._graph[owner]), unpack_roster(self.roster).threshold)

    def _joined(self, owner: str) -> bytes:
        try:
            return join(self._shares.get(owner, {}), threshold=self._needed(owner))
        except ProtocolError as err:
            raise ProtocolError(f"{owner}: {err}") from err

    def _joined_mask(self, owner: str) -> bytes:
        found = self._joined(owner)
        if mark(found) != self.marks[owner].get(owner):
            raise ProtocolError(f"{owner} has shared another mask than the one it has promised")
        return found

    def _joined_key(self, owner: str) -> OwnKey:
        found = OwnKey(self._joined(owner))
        if found.public != self._members[owner].mask_key:
            raise ProtocolError(f"{owner} has shared another key than the one in the roster")
        return found

    @cached_property
    def _members(self) -> dict[str, Member]:
        return read_roster(self.roster)

    @cached_property
    def _digest(self) -> bytes:
        return digest_of(self.roster)

    @cached_property
    def _graph(self) -> dict[str, frozenset[str]]:
        count = unpack_roster(self.roster).neighbours
        return neighbours_of(sorted(self._members), self._digest, count=count)
