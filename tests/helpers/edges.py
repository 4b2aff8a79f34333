"""Edge servers in threads of the test, between a host and agents on one broker."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedwright.protocol import codec, topics
from fedwright.protocol.messages import Gone
from fedwright.server_runtime.edge.base import BaseEdge
from fedwright.server_runtime.edge.config import edge_from_dict
from fedwright.server_runtime.edge.host_channel import Presence
from fedwright.server_runtime.edge.run import edge_board, serve
from helpers.fleet import FLEET, WAIT_S, LinkMaker


class RunningEdge:
    """A real edge in a thread; `links` has a method `link(name)`, as a broker in memory has."""

    def __init__(self, links: LinkMaker, name: str, folder: Path, **sections: Any) -> None:
        edge = {"name": name, "folder": str(folder), **sections.pop("edge", {})}
        self.config = edge_from_dict({"edge": edge, "host": {"fleet": FLEET}, **sections}, where="test")
        boot = codec.new_id()
        self.presence = Presence(FLEET, name, boot, edge_board())
        self.gone = (topics.up(FLEET, name), codec.encode(Gone(), sender=name, boot=boot))
        self.links = [links.link(f"{name}-up"), links.link(f"{name}-down")]
        self.error: BaseException | None = None
        self._edge: BaseEdge | None = None
        self._started = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self._started.wait(WAIT_S)

    def _run(self) -> None:
        up, down = self.links
        try:
            serve(self.config, self.presence, up=up, down=down, started=self._begin)
        except Exception as err:  # noqa: BLE001  (handed to the test)
            self.error = err
        finally:
            self._started.set()

    def _begin(self, edge: BaseEdge) -> None:
        self._edge = edge
        self._started.set()

    def stop(self) -> None:
        """End the edge and wait for it."""
        if self._edge is not None:
            self._edge.stop()
        self.thread.join(WAIT_S)
        for link in self.links:
            link.close()


@contextmanager
def run_edges(links: LinkMaker, folder: Path, *names: str, **sections: Any) -> Iterator[list[RunningEdge]]:
    """Edges that run while the block does."""
    with ExitStack() as stack:
        edges = []
        for name in names:
            edges.append(RunningEdge(links, name, folder, **sections))
            stack.callback(edges[-1].stop)
        yield edges
