"""Rounds through edges end as rounds without: real host, edges and agents over a broker in memory."""

import numpy as np
import pytest

from fedwright.benchmarks.dealing import deal
from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.rounds.sqlite_store import SqliteRoundStore
from fedwright.server_runtime.rounds.store import Position
from helpers.edges import run_edges
from helpers.simulation import local_data, make_config, run_agents


def play(folder, *, edges, devices=4, **sections):
    """A run whose devices sit behind edges in turn; returns its final state, its host's link and its store."""
    config, text = make_config(
        folder, fleet={"devices": devices}, simulate={"devices": devices, "evaluate_every": 0}, **sections
    )
    data = local_data(deal(config.simulate, seed=config.run.seed))
    names = [f"edge-{number}" for number in range(edges)]
    fleets = {device: names[number % edges] for number, device in enumerate(data)} if edges else {}
    broker = MemoryBroker()
    with run_edges(broker, folder, *names), run_agents(broker, folder / "devices", data, fleets=fleets):
        link = broker.link("server")
        outcome = runs.execute(config, text, link=link)
        link.close()
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        state = tensors.load(BlobStore(folder / "run/blobs").path(store.closed()[-1].state))
        return state, link, store.replies(Position(1, 0)), outcome
    finally:
        store.close()


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "fedprox"},
        {"name": "heterofl", "masked": False, "levels": {"sizes": [1.0, 0.5]}},
        {"name": "fedrolex", "levels": {"sizes": [0.5]}},
    ],
    ids=lambda method: method["name"],
)
def test_hierarchical_averages_are_flat_averages(tmp_path, method):
    flat, *_ = play(tmp_path / "flat", edges=0, method=method)
    state, _, replies, outcome = play(tmp_path / "edges", edges=2, method=method)

    assert state.keys() == flat.keys()
    for name, value in flat.items():
        np.testing.assert_allclose(state[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
    pooled = [reply.update for reply in replies.values() if reply.update.parts]
    assert sorted(len(update.parts) for update in pooled) == [2, 2]
    assert [record.rounds for record in outcome.devices.values()] == [2, 2, 2, 2]


def test_methods_that_need_every_update_get_every_update(tmp_path):
    flat, *_ = play(tmp_path / "flat", edges=0, update={"combine": "median"})
    state, _, replies, _ = play(tmp_path / "edges", edges=2, update={"combine": "median"})

    assert all(np.array_equal(state[name], flat[name]) for name in flat)
    assert not any(reply.update.parts for reply in replies.values())


def test_bytes_at_the_host_fall_with_the_number_of_edges(tmp_path):
    links = {
        edges: play(tmp_path / str(edges), edges=edges, devices=6, update={"evaluate": False})[1]
        for edges in (0, 1, 3)
    }

    assert links[1].received_bytes < links[3].received_bytes < links[0].received_bytes / 1.5
    assert links[1].sent_bytes < links[3].sent_bytes < links[0].sent_bytes / 1.5
