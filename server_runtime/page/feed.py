"""What is new in a run, told once a second to every browser that shows it (server-sent events)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from fedwright.server_runtime.page.runs import Runs, shown
from fedwright.server_runtime.watch.run_watch import Row, RunWatch

TELL_S = 1.0
# A browser that hears nothing for longer takes the connection for broken.
PING_S = 15.0
# Messages that wait for a slow browser; after that it is told everything anew.
MOST_WAITING = 8


def event(kind: str, data: Any) -> bytes:
    """One server-sent event; `retry` says how soon to come back after a break."""
    return b"event: " + kind.encode() + b"\nretry: 1000\ndata: " + msgspec.json.encode(data) + b"\n\n"


class Feed:
    """Looks at one run while anybody listens, and tells all of them what has changed."""

    def __init__(self, runs: Runs, name: str) -> None:
        self._runs = runs
        self._name = name
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._rows: dict[str, Row] = {}
        self._told: Row = {}

    @property
    def listeners(self) -> int:
        """How many browsers listen."""
        return len(self._queues)

    async def listen(self) -> AsyncIterator[bytes]:
        """Everything at first, then what is new, until the listener goes away."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_WAITING)
        self._queues.add(queue)
        try:
            if self._task is None:
                await self._look()
                self._task = asyncio.create_task(self._tell())
            yield self._everything()
            while True:
                try:
                    found = await asyncio.wait_for(queue.get(), PING_S)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                yield self._everything() if found is None else found
        finally:
            self._queues.discard(queue)
            if not self._queues and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            news = await self._look()
            if news is None:
                continue
            message = event("news", news)
            for queue in self._queues:
                if queue.full():
                    _empty(queue)
                    queue.put_nowait(None)
                else:
                    queue.put_nowait(message)

    async def _look(self) -> Row | None:
        """What is other than at the last look; None when nothing is."""
        async with self._runs.looked_at(self._name) as watch:
            if watch is None:
                return {"gone": True} if self._told else None
            return self._differences(watch)

    def _differences(self, watch: RunWatch) -> Row | None:
        summary = shown(watch.summary())
        rows = {row["device"]: row for row in watch.fleet()}
        changed = []
        for name, row in rows.items():
            old = self._rows.get(name)
            if old is None:
                changed.append(shown(row))
            elif old != row:
                changed.append(
                    shown({key: value for key, value in row.items() if old[key] != value} | {"device": name})
                )
        gone = sorted(self._rows.keys() - rows.keys())
        news: Row = {"rows": changed, "gone": gone} if changed or gone else {}
        if summary != self._told:
            news["summary"] = summary
        self._rows, self._told = rows, summary
        return news or None

    def _everything(self) -> bytes:
        return event("everything", {"summary": self._told, "rows": [shown(row) for row in self._rows.values()]})

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None


def _empty(queue: "asyncio.Queue[bytes | None]") -> None:
    while not queue.empty():
        queue.get_nowait()
