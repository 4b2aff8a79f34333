"""A fleet in which every device has its own architecture, over a real broker, through kills of the server."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedwright.protocol.link.broker import Broker
from fedwright.simulation.dealing import Dealt, deal
from helpers.resume import Links, execute, final_state, simulated_state
from helpers.simulation import local_data, make_config, public_file, run_agents

MODELS = [
    "cnn1@0.5",
    "cnn2@0.5",
    "cnn3@0.125",
    "cnn4@0.0625",
    "mobilenet-v1@0.0625",
    "mobilenet-v2@0.125",
    "mobilenet-v3@0.125",
    "python:helpers.own_module:make",
]


def enlarged(dealt: Dealt) -> Dealt:
    """Digits at twice the size, which these models need."""
    return replace(dealt, x=np.repeat(np.repeat(dealt.x, 2, axis=2), 2, axis=3))


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_architectures_teach_one_another_and_outlive_their_server(tmp_path: Path) -> None:
    own = {f"device-{number}": model for number, model in enumerate(MODELS)}
    config, text = make_config(
        tmp_path / "mqtt",
        method={"name": "pfedclub", "own": {"devices": own}, "most": 3, "finalists": 1, "tune_epochs": 1, "rows": 32},
        model={"model": "cnn1"},
        fleet={"devices": len(MODELS)},
        public={"file": str(tmp_path / "public.npz")},
        simulate={"devices": len(MODELS), "rows": 400, "evaluate_every": 0, "partition": "iid"},
    )
    dealt = enlarged(deal(config.simulate, seed=config.run.seed))
    np.savez(tmp_path / "public.npz", x=dealt.x[:40], y=dealt.y[:40])
    with Broker() as broker, run_agents(Links(broker.url), tmp_path / "devices", local_data(dealt)):
        # in the first round, before anybody has a teacher, and in the second
        outcome = execute(config, text, Links(broker.url), kills=(3, 8))
    assert [record.rounds for record in outcome.devices.values()] == [2] * len(MODELS)
    assert outcome.metrics[0]["teachers"] >= len(MODELS) - 2

    # Artifacts are taken over: equal structures give equal ones, and building them is most of the work.
    shutil.copytree(tmp_path / "mqtt/run/artifacts", tmp_path / "simulated/run/artifacts")
    assert final_state(tmp_path / "mqtt") == simulated_state(config, text, tmp_path / "simulated", dealt=dealt)


@pytest.mark.broker
@pytest.mark.parametrize("method", ["fedmd", "fedkemf", "fedgh"])
def test_a_server_killed_between_stages_goes_on_to_the_same_bytes(tmp_path: Path, method: str) -> None:
    config, text = make_config(
        tmp_path / "mqtt",
        method={"name": method, "own": {"models": ["cnn-small", "mlp@0.5"]}},
        model={"model": "cnn-small"},
        fleet={"devices": 2},
        public=public_file(tmp_path, rows=40),
        simulate={"devices": 2, "rows": 120, "evaluate_every": 0},
    )
    dealt = deal(config.simulate, seed=config.run.seed)
    with Broker() as broker, run_agents(Links(broker.url), tmp_path / "devices", local_data(dealt)):
        # in the first stage of the first round, then in its second or in the next round
        outcome = execute(config, text, Links(broker.url), kills=(1, 2))
    assert [record.rounds for record in outcome.devices.values()] == [2, 2]
    assert final_state(tmp_path / "mqtt") == simulated_state(config, text, tmp_path / "simulated")
