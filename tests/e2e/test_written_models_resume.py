"""Methods whose server writes models, over a real broker: the server dies within rounds and the run ends the same."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.simulation.dealing import deal
from helpers.resume import Links, execute, final_state, simulated_state
from helpers.simulation import local_data, make_config, run_agents

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "framp": ("framp", {"sizes": [1.0, 0.25]}),
    "hyperflora": ("hyperflora", {"pretrain_rounds": 1, "exchanges": 2}),
    "pfedhn": ("pfedhn", {}),
    "pfedhn, parallel": ("pfedhn", {"parallel": True}),
    "pfedhn, learnt vectors": ("pfedhn", {"describe": "embedding"}),
    "adapters-private": ("adapters-private", {"pretrain_rounds": 1}),
}


@pytest.mark.broker
@pytest.mark.parametrize("case", sorted(CASES))
def test_a_killed_server_goes_on_to_the_same_bytes(tmp_path: Path, case: str) -> None:
    method, params = CASES[case]
    config, text = make_config(
        tmp_path / "mqtt",
        method={"name": method, **params},
        model={"model": METHODS[method].model},
        fleet={"devices": 3},
        simulate={"devices": 3, "rows": 160, "evaluate_every": 0},
    )
    data = local_data(deal(config.simulate, seed=config.run.seed))
    with Broker() as broker, run_agents(Links(broker.url), tmp_path / "devices", data):
        # in the first round, then within the second one, with hyperflora on a pair's way
        outcome = execute(config, text, Links(broker.url), kills=(2, 4))

    assert final_state(tmp_path / "mqtt") == simulated_state(config, text, tmp_path / "simulated")
    assert [record.rounds for record in outcome.devices.values()] == [2, 2, 2]
