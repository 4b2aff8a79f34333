"""`fedwright bench edges`: what reaches the host, with and without edge servers between it and the same devices.

Everything but the processes is real: a broker, the host's run, edges with stores of their own, agents that train.
"""

import argparse
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.benchmarks.harness.real_fleet import agent_in_thread, in_thread
from fedwright.benchmarks.harness.suite import check
from fedwright.protocol import codec, tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig, config_from_text
from fedwright.server_runtime.edge.base import BaseEdge
from fedwright.server_runtime.edge.config import edge_from_dict
from fedwright.server_runtime.edge.host_channel import Presence
from fedwright.server_runtime.edge.run import edge_board, serve
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_folder.folder import folder_of
from fedwright.simulation.dealing import deal, local_data
from fedwright.simulation.edged_fleet import in_turn

DEVICES = 12
EDGES = (0, 1, 2, 4)
FLEET = "bench"
# The mean of means in float32 against the mean of all.
SAME = 1e-5
# Of what falls with the edges the messages of each device do not: reports, statistics, acknowledgements.
SLACK = 1.3

CONFIG = """
[run]
name = "edges"
seed = 5
rounds = 2
folder = "{folder}"
[fleet]
name = "bench"
broker = "{broker}"
devices = {devices}
[model]
model = "resnet8"
[method]
name = "fedavg"
[update]
evaluate = false
[export]
global_model = false
[simulate]
devices = {devices}
rows = {rows}
alpha = 10.0
"""


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes at the host per round and bytes of updates that it stores at once, for several numbers of edges."""
    devices = DEVICES // 2 if args.quick else DEVICES
    rows, states = [], {}
    with Broker() as broker:
        for edges in EDGES:
            with tempfile.TemporaryDirectory() as folder:
                row, states[edges] = measure(Path(folder), broker.url, edges=edges, devices=devices)
                rows.append(row)
    flat, *edged = rows
    checks = []
    for edges, row in zip(EDGES[1:], edged, strict=True):
        for name in ("MB received", "MB sent"):
            ratio = row[name] / flat[name]
            limit = SLACK * edges / devices
            checks.append(check(f"{name} with {edges} edges, of flat", ratio, f"<= {limit:.2f}", holds=ratio <= limit))
        worst = max(float(np.abs(states[edges][name] - value).max()) for name, value in states[0].items())
        checks.append(check(f"largest difference to flat with {edges} edges", worst, f"<= {SAME}", holds=worst <= SAME))
    return {"seeds": [5], "tables": {f"host of {devices} devices, per round": rows}, "checks": checks}


def measure(folder: Path, broker: str, *, edges: int, devices: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run; returns its row and the final weights."""
    text = CONFIG.format(folder=folder, broker=broker, devices=devices, rows=40 * devices)
    config = config_from_text(text, where="bench edges")
    dealt = deal(config.simulate, seed=config.run.seed)
    places = in_turn(list(dealt.shares), edges) if edges else {}
    stored = _Stored(folder_of(config).blobs)
    with ExitStack() as stack:
        for edge in sorted(set(places.values())):
            stack.enter_context(_edge(edge, folder, broker))
        for device in dealt.shares:
            own = local_data(dealt, device)
            stack.enter_context(agent_in_thread(device, places.get(device, FLEET), own, folder=folder, broker=broker))
        link = connect(broker, client_id="server")
        stack.callback(link.close)
        runs.execute(config, text, link=link, observer=stored)
        received, sent = link.received_bytes, link.sent_bytes
    row = {
        "edges": edges,
        "MB received": received / 1e6 / config.run.rounds,
        "MB sent": sent / 1e6 / config.run.rounds,
        "MB stored at most": stored.most_bytes / 1e6,
    }
    return row, _final(config)


class _Stored:
    """Watches how large the host's blobs get while updates come in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.most_bytes = 0

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.UpdateTaken):
            present = sum(file.stat().st_size for file in self._folder.iterdir())
            self.most_bytes = max(self.most_bytes, present)


@contextmanager
def _edge(name: str, folder: Path, broker: str) -> Iterator[None]:
    config = edge_from_dict({"edge": {"name": name, "folder": str(folder / "edges")}}, where="bench edges")
    presence = Presence(FLEET, name, codec.new_id(), edge_board())
    up, down = connect(broker, client_id=f"{name}-up"), connect(broker, client_id=f"{name}-down")
    found: list[BaseEdge] = []
    started = threading.Event()

    def begin(edge: BaseEdge) -> None:
        found.append(edge)
        started.set()

    def stop() -> None:
        started.wait()
        found[0].stop()

    with in_thread(lambda: serve(config, presence, up=up, down=down, started=begin), stop):
        yield
    up.close()
    down.close()


def _final(config: RunConfig) -> dict[str, Any]:
    folder = folder_of(config)
    store = SqliteRoundStore(folder.store)
    try:
        return tensors.load(BlobStore(folder.blobs).path(store.closed()[-1].state))
    finally:
        store.close()
