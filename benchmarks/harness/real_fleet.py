"""Real agents in threads of this process, over a real broker, beside what a simulation says of their links."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.suite import merged
from fedwright.device_runtime import facts
from fedwright.device_runtime.agent import Agent
from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.equipment import Equipment, make_tools
from fedwright.device_runtime.in_process import InProcessRunner
from fedwright.device_runtime.resources import Resources
from fedwright.device_runtime.server_choice import DeviceIdentity
from fedwright.device_runtime.store.journal import Journal
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.protocol import codec
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link import connect
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig, config_from_dict
from fedwright.server_runtime.rounds.channel import Channel
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.transport.device_channel import DeviceChannel
from fedwright.simulation.dealing import deal, local_data, reserve
from fedwright.simulation.simulate import simulate


@contextmanager
def in_thread(work: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    """Work beside this thread until the block ends."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()


@contextmanager
def agent_in_thread(device: str, fleet: str, data: LocalData, *, folder: Path, broker: str) -> Iterator[None]:
    """A real agent with its own stores, connected to a broker until the block ends."""
    own = folder / "devices" / device
    journal, residual, tools = Journal(own), ErrorFeedback(own), make_tools("portable", threads=1, folder=own)
    resources = Resources(
        board=facts.board(threads=1),
        told=data.summary(),
        blobs=BlobStore(own / "blobs"),
        journal=journal,
        residual=residual,
        personal=tools.personal,
        checkpoint=tools.checkpoint,
        runner=InProcessRunner(Equipment(data, tools, residual, own)),
    )
    link = connect(broker, client_id=device)
    agent = Agent(link, DeviceIdentity(device, fleet, codec.new_id()), resources)
    with in_thread(agent.run, agent.stop):
        yield
    link.close()
    journal.close()


def link_overhead(config: Mapping[str, Any], broker: str) -> dict[str, float]:
    """A run's bytes of one device as its link counted them, and as a simulation of the same run adds them up."""
    with tempfile.TemporaryDirectory(prefix="fedwright-link-") as folder:
        simulated = _simulated(_config(config, Path(folder) / "simulated", broker))
        real = _over_a_link(_config(config, Path(folder) / "real", broker), Path(folder), broker)
    tasks = sum(record.answers for record in real.values())
    counted, measured = (sum(r.bytes_up + r.bytes_down for r in records.values()) for records in (simulated, real))
    return {"measured": measured / tasks, "counted": counted / tasks, "beyond": (measured - counted) / tasks}


def _config(config: Mapping[str, Any], folder: Path, broker: str) -> RunConfig:
    own = {"run": {"name": "link", "folder": str(folder)}, "fleet": {"broker": broker, "name": "link"}}
    data = merged(config, own, {"simulate": {"processes": 0}, "export": {"global_model": False}})
    return config_from_dict(data, where="link check")


def _simulated(config: RunConfig) -> dict[str, DeviceRecord]:
    return simulate(config, "").outcome.devices


def _over_a_link(config: RunConfig, folder: Path, broker: str) -> dict[str, DeviceRecord]:
    """Every device as an agent of its own, with the rows that the simulation gives it."""
    dealt = deal(config.simulate, seed=config.run.seed, public=config.public)
    dealt, public = reserve(dealt, config.public, seed=config.run.seed)
    with ExitStack() as stack:
        for device in dealt.shares:
            data = local_data(dealt, device)
            stack.enter_context(agent_in_thread(device, config.fleet.name, data, folder=folder, broker=broker))
        link = connect(broker, client_id="server")
        stack.callback(link.close)

        def talk(blobs: BlobStore) -> Channel:
            return DeviceChannel(link, config.fleet.name, blobs=blobs)

        found = runs.conduct(config, "", runs.FleetAccess(talk, public=public))
    return found.devices
