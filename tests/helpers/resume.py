"""What tests of killed and resumed servers share: links to a real broker, a death, and the state at the end."""

from collections.abc import Callable
from pathlib import Path

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link import Link, connect
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore


class Links:
    """Links to a broker at an address, by name."""

    def __init__(self, url: str) -> None:
        self._url = url

    def link(self, name: str) -> Link:
        """A new connection."""
        return connect(self._url, client_id=name)


class Killed(Exception):
    """The server's process is gone."""


def die_after(updates: int) -> Callable[[events.Event], None]:
    """An observer that ends the server at this update."""
    left = updates

    def observe(event: events.Event) -> None:
        nonlocal left
        if isinstance(event, events.UpdateTaken):
            left -= 1
            if not left:
                raise Killed

    return observe


def final_state(folder: Path) -> bytes:
    """The last saved state of the run named `run` in a folder."""
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        return BlobStore(folder / "run/blobs").read(store.closed()[-1].state)
    finally:
        store.close()
