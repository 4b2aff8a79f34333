"""FedProx with µ = 0 is FedAvg bit for bit over whole runs, in simulation and over a broker; µ > 0 is not."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import simulate
from helpers.resume import Links, final_state
from helpers.simulation import local_data, make_config, run_agents

SMALL = {"rows": 160, "devices": 3, "evaluate_every": 0}
TRAIN = {"epochs": 2, "optimizer": {"momentum": 0.9, "weight_decay": 0.001}}


def configured(folder: Path, **method: Any) -> tuple[RunConfig, str]:
    return make_config(folder, rounds=3, method=method, train=TRAIN, fleet={"devices": 3}, simulate=SMALL)


@pytest.mark.broker
def test_without_its_term_it_is_fedavg(tmp_path: Path) -> None:
    simulate(*configured(tmp_path / "fedavg", name="fedavg"))
    simulate(*configured(tmp_path / "simulated", name="fedprox", mu=0.0))
    simulate(*configured(tmp_path / "near", name="fedprox", mu=0.1))
    config, text = configured(tmp_path / "mqtt", name="fedprox", mu=0.0)
    data = local_data(deal(config.simulate, seed=config.run.seed))
    with Broker() as broker, run_agents(Links(broker.url), tmp_path / "devices", data):
        link = Links(broker.url).link("server")
        runs.execute(config, text, link=link)
        link.close()

    plain = final_state(tmp_path / "fedavg")
    assert final_state(tmp_path / "simulated") == plain
    assert final_state(tmp_path / "mqtt") == plain
    assert final_state(tmp_path / "near") != plain


def test_a_round_says_what_it_cost(tmp_path: Path) -> None:
    """Down: the weights of every device. Up: as many numbers, packed. MACs: those of the model, whoever trains it."""
    config, text = configured(tmp_path, name="fedavg")
    found = simulate(config, text)

    metrics = found.outcome.metrics[-1]
    record = next(iter(found.outcome.devices.values()))
    assert metrics["macs"] == record.macs > 0
    assert 0.5 * metrics["bytes_down"] < metrics["bytes_up"] <= metrics["bytes_down"]
    hasa = {"name": "hasa", "budget": 0.5, "least": 0.25, "most": 1.0}
    narrow = simulate(*configured(tmp_path / "hasa", **hasa)).outcome.metrics[-1]
    assert narrow["macs"] < metrics["macs"]
    assert narrow["bytes_up"] < metrics["bytes_up"]
    assert 0 < narrow["budget"] <= 0.55
