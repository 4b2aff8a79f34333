"""What the edges of a stage show each other by way of the host, so that clusters behind different edges are linked.

An edge shows its clusters (their views, `blocks/fedconv/cluster_exchange.py`) when its pools are complete and then
waits for what the others named in its tasks show; one that has nothing to show, or is away, is not waited for. All of
it is kept with the edge's notes, so that an edge that starts again need not ask anew.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import structs

from fedwright.protocol.blobs import BlobStore, check_ref, inlined, make_ref
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import BlobRef, Shown
from fedwright.server_runtime.transport.cluster_relay import MOST_BYTES

log = logging.getLogger(__name__)

OWN, OTHERS = "shown", "shown by others"


class Notes(Protocol):
    """What an edge keeps besides tasks; its store does."""

    def note(self, name: str) -> bytes | None:
        """Something kept under a name."""
        ...

    def save_note(self, name: str, value: bytes) -> None:
        """Keep something under a name."""
        ...


class ClusterSharing:
    """One edge's place among the edges of a stage; only the last stage counts."""

    def __init__(self, edge: str, notes: Notes, blobs: BlobStore) -> None:
        self._edge = edge
        self._notes = notes
        self._blobs = blobs
        own, others = notes.note(OWN), notes.note(OTHERS)
        self._own = None if own is None else msgspec.msgpack.decode(own, type=Shown)
        self._others = {} if others is None else msgspec.msgpack.decode(others, type=dict[str, Shown])

    def own(self) -> Shown | None:
        """What this edge has shown last, ready to be sent; None when it never has."""
        if self._own is None or self._own.clusters is None or not self._blobs.has(self._own.clusters.sha256):
            return self._own
        return structs.replace(self._own, clusters=inlined(self._blobs, self._own.clusters))

    @property
    def stage(self) -> str | None:
        """The last stage in which this edge has shown anything."""
        return None if self._own is None else self._own.stage

    def show(self, stage: str, views: bytes | None) -> None:
        """From now on this is what others may see of this edge."""
        ref = None
        if views is not None:
            ref = make_ref(views, inline=False)
            self._blobs.put_bytes(views)
        self._replace(self._own, ref)
        self._own = Shown(stage, self._edge, ref)
        self._notes.save_note(OWN, msgspec.msgpack.encode(self._own))

    def take(self, shown: Shown) -> None:
        """Another edge shows something; `wanted` says whether it has to be fetched."""
        try:
            if shown.clusters is not None:
                check_ref(shown.clusters, max_bytes=MOST_BYTES)
        except BadBlob as err:
            log.warning("edge %s: %s; its clusters are not linked", shown.edge, err)
            shown = structs.replace(shown, clusters=None)
        known = self._others.get(shown.edge)
        if known is not None and known.stage == shown.stage and shown.clusters is None:
            # It had shown its clusters before it went away.
            return
        self._replace(known, shown.clusters)
        ref = shown.clusters
        if ref is not None and ref.inline is not None:
            self._blobs.put_bytes(ref.inline)
            shown = structs.replace(shown, clusters=structs.replace(ref, inline=None))
        self._others[shown.edge] = shown
        self._notes.save_note(OTHERS, msgspec.msgpack.encode(self._others))

    def wanted(self) -> list[BlobRef]:
        """What others have shown and is not here yet."""
        refs = [shown.clusters for shown in self._others.values() if shown.clusters is not None]
        return [ref for ref in refs if not self._blobs.has(ref.sha256)]

    def missing(self, stage: str, peers: Sequence[str]) -> list[str]:
        """Of these edges, those whose clusters are not here yet."""
        return [peer for peer in peers if not self._is_here(stage, peer)]

    def views(self, stage: str, peers: Sequence[str]) -> dict[str, bytes]:
        """What these edges have shown in a stage."""
        found = {}
        for peer in sorted(peers):
            shown = self._others.get(peer)
            if shown is not None and shown.clusters is not None and self._is_here(stage, peer):
                found[peer] = self._blobs.read(shown.clusters.sha256)
        return found

    def _is_here(self, stage: str, peer: str) -> bool:
        shown = self._others.get(peer)
        if shown is None or shown.stage != stage:
            return False
        return shown.clusters is None or self._blobs.has(shown.clusters.sha256)

    def _replace(self, before: Shown | None, ref: BlobRef | None) -> None:
        """Let go of what was shown before."""
        if before is not None and before.clusters is not None:
            kept = {None if ref is None else ref.sha256}
            kept |= {None if one.clusters is None else one.clusters.sha256 for one in self._all() if one is not before}
            if before.clusters.sha256 not in kept:
                self._blobs.remove(before.clusters.sha256)

    def _all(self) -> list[Shown]:
        return [*self._others.values(), *([] if self._own is None else [self._own])]
