"""Answers requests for chunks; a chunk that several devices want at the same time goes out once, to all of them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fedwright.protocol.blobs import ANSWER_CHUNKS
from fedwright.protocol.messages import Chunk, Get, Located, Lost
from fedwright.protocol.uploads import Uploads

# Requests for a blob that a whole fleet needs are held back this long, so that they meet.
GATHER_S = 0.05

# Nobody needs a blob more often in a minute; what a link loses is asked for again.
MOST_TIMES = 8
MOST_LOST = 256
MINUTE_S = 60.0

Send = Callable[[str | None, Chunk | Lost | Located], None]
"""Sends to one device, or to all (None)."""


@dataclass
class _Wanted:
    """Chunks of one blob that were asked for since `since_s`, each with those who asked."""

    since_s: float
    askers: dict[int, list[str]]


class ChunkServer:
    """Serves blobs; those offered as `common` (an artifact, a frozen base) are worth gathering requests for."""

    def __init__(self, uploads: Uploads, send: Send, *, clock: Callable[[], float]) -> None:
        self._uploads = uploads
        self._send = send
        self._clock = clock
        self._common: set[str] = set()
        self._wanted: dict[str, _Wanted] = {}
        # Chunks that each device asked for, of each blob, in this minute.
        self._asked: Counter[tuple[str, str]] = Counter()
        self._since_s = clock()

    def offer_common(self, sha256: str) -> None:
        """From now on requests for this blob are gathered."""
        self._common.add(sha256)

    def request(self, device: str, get: Get) -> None:
        """Answer a request now, or a moment later together with those of other devices; not the same for ever."""
        if not self._is_needed(device, get):
            return
        if get.https and (address := self._uploads.address(get.sha256)) is not None:
            self._send(device, Located(get.sha256, address))
            return
        if get.sha256 not in self._common:
            for message in self._uploads.answer(get):
                self._send(device, message)
            return
        wanted = self._wanted.setdefault(get.sha256, _Wanted(self._clock(), {}))
        for index in get.chunks[:ANSWER_CHUNKS]:
            askers = wanted.askers.setdefault(index, [])
            if device not in askers:
                askers.append(device)

    def due_s(self) -> float | None:
        """Seconds until gathered requests must be answered; None when there are none."""
        if not self._wanted:
            return None
        return max(0.0, min(w.since_s for w in self._wanted.values()) + GATHER_S - self._clock())

    def flush(self) -> None:
        """Answer what has been gathered long enough."""
        ripe = [sha256 for sha256, w in self._wanted.items() if self._clock() - w.since_s >= GATHER_S]
        for sha256 in ripe:
            for index, askers in self._wanted.pop(sha256).askers.items():
                for message in self._uploads.answer(Get(sha256, [index])):
                    self._send(askers[0] if len(askers) == 1 else None, message)

    def _is_needed(self, device: str, get: Get) -> bool:
        """Whether a device may still need what it asks for; a word from it must not cost us the link of all others."""
        if self._clock() - self._since_s >= MINUTE_S:
            self._since_s = self._clock()
            self._asked.clear()
        chunks = self._uploads.count(get.sha256)
        asked = (device, get.sha256 if chunks else "")
        self._asked[asked] += min(len(get.chunks), ANSWER_CHUNKS) if chunks else 1
        return self._asked[asked] <= (MOST_TIMES * max(chunks, ANSWER_CHUNKS) if chunks else MOST_LOST)
