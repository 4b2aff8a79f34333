"""What edges show each other passes through the host, which keeps the last of each and looks into none.

An edge that shows its clusters gets those that others have shown in the same stage, and they get its own; edges that
are away are told as having none, so that nobody waits for them.
"""

import logging
from collections.abc import Callable

from msgspec import structs

from fedwright.protocol.blobs import BlobStore, check_ref, inlined
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import BlobRef, Shown
from fedwright.protocol.uploads import Uploads

log = logging.getLogger(__name__)

# A thousand clusters of a last layer with 16,000 numbers; edges take no more either.
MOST_BYTES = 64 * 1024**2


class ClusterRelay:
    """Passes on what edges show; `pull` fetches a blob from an edge, `send` speaks to one."""

    def __init__(
        self,
        blobs: BlobStore,
        uploads: Uploads,
        *,
        pull: Callable[[str, BlobRef], None],
        send: Callable[[str, Shown], None],
    ) -> None:
        self._blobs = blobs
        self._uploads = uploads
        self._pull = pull
        self._send = send
        self._last: dict[str, Shown] = {}
        self._away: set[str] = set()

    def take(self, edge: str, shown: Shown) -> None:
        """An edge shows something; when that is here it goes to the others of its stage."""
        shown = structs.replace(shown, edge=edge)
        if shown.clusters is not None:
            try:
                check_ref(shown.clusters, max_bytes=MOST_BYTES)
            except BadBlob as err:
                log.warning("edge %s: %s; what it shows is not passed on", edge, err)
                shown = structs.replace(shown, clusters=None)
        ref, before = shown.clusters, self._last.get(edge)
        self._last[edge] = shown if ref is None else structs.replace(shown, clusters=structs.replace(ref, inline=None))
        self._away.discard(edge)
        if before is not None:
            self._let_go(before.clusters)
        if ref is None or self._is_here(shown):
            self._introduce(edge)
        else:
            self._pull(edge, ref)

    def pulled(self, sha256: str) -> None:
        """A blob is here; an edge may have shown it."""
        for edge, shown in self._last.items():
            if shown.clusters is not None and shown.clusters.sha256 == sha256:
                self._introduce(edge)

    def back(self, edge: str) -> None:
        """An edge reports."""
        self._away.discard(edge)

    def lose(self, edge: str) -> None:
        """An edge is away: whoever waits for it need not."""
        self._away.add(edge)
        for other, shown in self._last.items():
            if other != edge and not self._has_shown(edge, shown.stage):
                self._send(other, Shown(shown.stage, edge))

    def _introduce(self, edge: str) -> None:
        """Let an edge and the others of its stage know of each other."""
        own = self._last[edge]
        for other in sorted(self._last.keys() - {edge}):
            if self._has_shown(other, own.stage):
                self._tell(other, own)
                self._tell(edge, self._last[other])
        for other in sorted(self._away - {edge}):
            if not self._has_shown(other, own.stage):
                self._send(edge, Shown(own.stage, other))

    def _has_shown(self, edge: str, stage: str) -> bool:
        shown = self._last.get(edge)
        return shown is not None and shown.stage == stage and self._is_here(shown)

    def _is_here(self, shown: Shown) -> bool:
        return shown.clusters is None or self._blobs.has(shown.clusters.sha256)

    def _tell(self, edge: str, shown: Shown) -> None:
        if shown.clusters is not None:
            self._uploads.serve(shown.clusters)
            shown = structs.replace(shown, clusters=inlined(self._blobs, shown.clusters))
        self._send(edge, shown)

    def _let_go(self, ref: BlobRef | None) -> None:
        """Forget a blob that nobody shows any longer."""
        if ref is None:
            return
        if all(shown.clusters is None or shown.clusters.sha256 != ref.sha256 for shown in self._last.values()):
            self._uploads.withdraw(ref.sha256)
            self._blobs.remove(ref.sha256)
