"""Methods whose server writes models, over a real broker: the server dies within rounds and the run ends the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import simulate
from helpers.resume import Killed, Links, die_after, final_state
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
        links = Links(broker.url)
        # in the first round, then within the second one, with hyperflora on a pair's way
        for updates in (2, 4):
            link = links.link("server")
            with pytest.raises(Killed):
                runs.execute(config, text, link=link, observer=die_after(updates))
            link.close()
        link = links.link("server")
        outcome = runs.execute(config, text, link=link)
        link.close()

    simulate(replace(config, run=replace(config.run, folder=str(tmp_path / "simulated"))), text)
    assert final_state(tmp_path / "mqtt") == final_state(tmp_path / "simulated")
    assert [record.rounds for record in outcome.devices.values()] == [2, 2, 2]
