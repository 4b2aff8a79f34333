"""Every method over a real broker, with agents that know nothing of it, ends with the bytes of its simulation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.simulation.dealing import deal
from helpers.resume import Links, execute, final_state, simulated_state
from helpers.simulation import local_data, make_config, public_file, run_agents

PARAMS: dict[str, dict[str, Any]] = {
    "framp": {"sizes": [1.0, 0.25]},
    "hyperflora": {"pretrain_rounds": 1, "exchanges": 1},
    "adapters-private": {"pretrain_rounds": 1},
    "hasa": {"budget": 0.6, "most": 1.0, "least": 0.4},
    "heterofl": {"levels": {"sizes": [1.0, 0.5]}},
    "fedrolex": {"levels": {"sizes": [1.0, 0.5]}},
    "fiarse": {"sizes": [1.0, 0.25]},
    # Pruning begins after the first round.
    "hermes": {"loss_below": 100.0},
    "lotteryfl": {"loss_below": 100.0},
    "tailorfl": {"levels": {"sizes": [1.0, 0.5]}},
}


@pytest.fixture(scope="module")
def links() -> Iterator[Links]:
    """A real broker."""
    with Broker() as broker:
        yield Links(broker.url)


@pytest.mark.broker
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_method_over_mqtt(tmp_path: Path, links: Any, method: str) -> None:
    config, text = make_config(
        tmp_path / "mqtt",
        public=public_file(tmp_path) if METHODS[method].needs_public else {},
        method={"name": method, **PARAMS.get(method, {})},
        model={"model": METHODS[method].model},
        fleet={"devices": 3},
        simulate={"devices": 3, "evaluate_every": 0},
    )
    with run_agents(links, tmp_path / "devices", local_data(deal(config.simulate, seed=config.run.seed))):
        outcome = execute(config, text, links)

    assert final_state(tmp_path / "mqtt") == simulated_state(config, text, tmp_path / "simulated")
    assert [record.rounds for record in outcome.devices.values()] == [2, 2, 2]
