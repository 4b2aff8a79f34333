"""Edges that stand for their devices: the host knows the edges alone, and ends as if it knew the devices."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime.store.journal import Journal
from fedwright.protocol import codec, tensors, topics
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Ack, Get, Pool, Recipe, Refusal, Returns, Stats, Task, Update
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import simulate
from helpers.edges import RunningEdge, run_edges
from helpers.fleet import Running
from helpers.present import present
from helpers.simulation import local_data, make_config, run_agents

STANDS = {"edge": {"stands": True}}
EDGES = ("edge-1", "edge-2")


def final_state(folder: Path) -> dict[str, NDArray[Any]]:
    """The last saved state of the run in a folder."""
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        return tensors.load(BlobStore(folder / "run/blobs").path(store.closed()[-1].state))
    finally:
        store.close()


def play(folder: Path, homes: dict[str, str], *, least: int = 2, **sections: Any) -> dict[str, NDArray[Any]]:
    """A run whose devices are at these edges; the host waits for two edges alone."""
    config, text = make_config(folder, fleet={"devices": 2}, **sections)
    data = local_data(deal(config.simulate, seed=config.run.seed))
    broker = MemoryBroker()
    standing = run_edges(broker, folder, *EDGES, devices={"least": least}, **STANDS)
    with standing, run_agents(broker, folder / "devices", data, fleets=homes):
        link = broker.link("server")
        outcome = runs.execute(config, text, link=link)
        link.close()
    assert set(outcome.devices) == set(EDGES)
    return final_state(folder)


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_a_run_of_edges_ends_as_one_of_their_devices(tmp_path: Path, name: str) -> None:
    dealt = deal(make_config(tmp_path)[0].simulate, seed=5)
    homes = dict(zip(sorted(dealt.shares), ("edge-1", "edge-1", "edge-2", "edge-2"), strict=True))
    # Devices of one edge go through their data in the same order; with all data in one batch there is none.
    alike: dict[str, Any] = {"update": {"weight_cap": 0, "norm_factor": 0}, "train": {"batch": 512}}
    state = play(tmp_path / "edges", homes, method={"name": name}, **alike)
    simulate(*make_config(tmp_path / "flat", method={"name": name}, **alike))
    flat = final_state(tmp_path / "flat")

    # What a device keeps for itself the host knows of devices, and here it knows edges.
    common = [name for name in flat if not name.startswith("own/")]
    assert common
    for name in common:
        np.testing.assert_allclose(state[name], flat[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_host_hears_nothing_of_devices(tmp_path: Path) -> None:
    """Bytes of a round at the host, with twice the devices behind the same edges."""
    received = []
    for devices in (4, 8):
        folder = tmp_path / str(devices)
        sizes = {"devices": devices, "rows": 80 * devices, "evaluate_every": 0}
        config, text = make_config(folder, rounds=2, fleet={"devices": 2}, simulate=sizes)
        data = local_data(deal(config.simulate, seed=5))
        homes = dict(zip(sorted(data), EDGES * (devices // 2), strict=True))
        broker = MemoryBroker()
        standing = run_edges(broker, folder, *EDGES, devices={"least": devices // 2}, **STANDS)
        with standing, run_agents(broker, folder / "devices", data, fleets=homes):
            link = broker.link("server")
            runs.execute(config, text, link=link)
            received.append(link.received_bytes)
            link.close()

    assert received[1] < 1.1 * received[0]


def test_a_method_that_needs_each_update_is_refused_in_words(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, fleet={"devices": 2, "deadline_s": 20}, method={"name": "fiarse"})
    data = local_data(deal(config.simulate, seed=5))
    homes = dict(zip(sorted(data), EDGES * 2, strict=True))
    broker, failed = MemoryBroker(), list[str]()

    def note(event: events.Event) -> None:
        if isinstance(event, events.TaskFailed):
            failed.append(event.detail)

    standing = run_edges(broker, tmp_path, *EDGES, devices={"least": 2}, **STANDS)
    with standing, run_agents(broker, tmp_path / "devices", data, fleets=homes):
        link = broker.link("server")
        with pytest.raises(Exception, match="can only average"):
            runs.execute(config, text, link=link, observer=note)
        link.close()
    assert all("use a method that does" in detail for detail in failed)


def shard_task(edge: str, name: str) -> Task:
    """What all devices of an edge get in one stage of a run."""
    ref, recipe = make_ref(b"blob", inline=False), Recipe(batch=8, learning_rate=0.1, seed=3)
    pool = Pool("pool", edge, 1, stage="first-stage")
    return Task(name, "boot-of-edge", "run", 1, ref, ref, recipe, Returns(), deadline_s=5.0, pool=pool, shard=edge)


@pytest.mark.parametrize("answered", [True, False], ids=["had answered", "had not answered"])
def test_a_device_answers_once_in_a_round_whatever_edges_are_lost(tmp_path: Path, answered: bool) -> None:
    broker = MemoryBroker()
    listener = broker.link("edge-2")
    listener.subscribe(topics.up("edge-2", "d0"))
    journal = Journal(tmp_path / "d0")
    journal.accept(shard_task("edge-1", "t1"))
    if answered:
        journal.answer(Update("t1", 1, Stats(samples=9, steps=1, train_s=0, cpu_s=0, peak_rss_bytes=1)))
    journal.forsake()
    journal.close()
    device = Running(broker, "d0", tmp_path, fleet="edge-2")
    payload = codec.encode(shard_task("edge-2", "t2"), sender="server", boot="host")
    broker.link("host").send(topics.shared("edge-2"), payload)
    heard: list[Any] = []
    while not isinstance(heard[-1] if heard else None, Refusal | Get):
        received = present(listener.receive(30))
        heard.append(codec.decode(received.payload).body)
    device.stop()

    assert any(isinstance(body, Ack) and body.of == "t2" for body in heard)
    if answered:
        assert "has answered in this round at another edge" in heard[-1].detail
    else:
        # It begins: what it lacks is asked for.
        assert heard[-1] == Get(make_ref(b"blob").sha256, [0])


def test_devices_of_a_lost_edge_take_part_at_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its devices has answered there and must not count twice; the other has not, and trains elsewhere."""
    config, text = make_config(
        tmp_path, rounds=3, fleet={"devices": 2, "deadline_s": 20, "quorum_ratio": 0.5, "join_timeout_s": 1}
    )
    data = local_data(deal(config.simulate, seed=5))
    broker, seen = MemoryBroker(), list[tuple[int, str, int]]()
    lost: list[RunningEdge] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.UpdateTaken) and not event.evaluation:
            seen.append((event.round, event.device, event.stats.samples))
        if isinstance(event, events.RoundClosed) and event.round == 1:
            lost[0].stop()

    standing = run_edges(broker, tmp_path, *EDGES, devices={"least": 2}, **STANDS)
    with standing as edges, ExitStack() as stack:
        lost.append(edges[0])
        for number, (device, own) in enumerate(sorted(data.items())):
            order = EDGES if number % 2 == 0 else EDGES[::-1]
            more = {"fleet": order[0], "further": order[1:], "patience_s": 3.0}
            stack.callback(Running(broker, device, tmp_path / "devices", data=own, **more).stop)
        link = broker.link("server")
        runs.execute(config, text, link=link, observer=note)
        link.close()
    whole = sum(len(own.y) for own in data.values())
    last = sum(samples for number, _, samples in seen if number == 3)

    assert {device for number, device, _ in seen if number == 1} == set(EDGES)
    assert {device for number, device, _ in seen if number == 3} == {"edge-2"}
    assert last == whole
