"""A graph on a device is what it is in a simulation: from its file to the same bytes, over a real broker."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedwright.device_runtime import data
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.data.graph import SUFFIX
from fedwright.device_runtime.equipment import SPLIT_SEED
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime import run as runs
from fedwright.simulation.simulate import simulate
from helpers.resume import Links, final_state
from helpers.simulation import make_config, run_agents

NODES, FEATURES = 12, 6


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    """One file per device: a ring whose two halves are two classes."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    for seed in range(2):
        rng = np.random.default_rng(seed)
        edges = np.stack([np.arange(NODES), (np.arange(NODES) + 1) % NODES], axis=1)
        y = (np.arange(NODES) >= NODES // 2).astype(np.int64)
        x = rng.normal(size=(NODES, FEATURES)).astype(np.float32) + y[:, None]
        np.savez(folder / f"pi-{seed}.graph.npz", x=x, y=y, edges=edges, classes=2)
    return folder


@pytest.mark.broker
def test_a_run_on_graphs_ends_with_the_bytes_of_its_simulation(tmp_path: Path, graphs: Path) -> None:
    config, text = make_config(
        tmp_path / "mqtt",
        method={"name": "framp", "sizes": [1.0, 0.25], "align": 0.1},
        model={"model": "gcn4"},
        fleet={"devices": 2},
        train={"batch": 16, "learning_rate": 0.1},
        simulate={"data": f"devices:{graphs}", "evaluate_every": 0},
    )
    held = {
        path.name.removesuffix(SUFFIX): data.load(str(path), holdout_ratio=AgentConfig.holdout_ratio, seed=SPLIT_SEED)
        for path in sorted(graphs.iterdir())
    }
    with Broker() as broker:
        links = Links(broker.url)
        with run_agents(links, tmp_path / "devices", held):
            link = links.link("server")
            outcome = runs.execute(config, text, link=link)
            link.close()
    assert {device: record.samples for device, record in outcome.devices.items()} == {"pi-0": 10, "pi-1": 10}
    simulate(replace(config, run=replace(config.run, folder=str(tmp_path / "simulated"))), text)
    assert final_state(tmp_path / "mqtt") == final_state(tmp_path / "simulated")
