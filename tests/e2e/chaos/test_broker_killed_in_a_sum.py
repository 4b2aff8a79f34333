"""The broker is killed while devices and server add up changes, and comes back empty: the same bytes come out."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import SumAnswer, SumAsk
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.rounds.secure import talk
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import simulate
from helpers.resume import Links, final_state
from helpers.simulation import local_data, make_config, run_agents

# Longer than anything takes on a machine that is busy.
LONG_S = 180.0
SECTIONS: dict[str, Any] = {"update": {"secure": True}, "simulate": {"rows": 120, "evaluate_every": 0}}


@pytest.mark.broker
@pytest.mark.parametrize("stage", ["mask", "open"])
def test_a_sum_outlives_its_broker(tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(*make_config(tmp_path / "undisturbed", rounds=1, **SECTIONS))
    config, text = make_config(tmp_path / "killed", rounds=1, **SECTIONS)
    asked, back, answer = threading.Event(), threading.Event(), SecureSums.answer

    def hold(own: SecureSums, ask: SumAsk, offer: Any) -> SumAnswer:
        # The broker goes between a question and its answer, and is back before there is another.
        if ask.stage == stage and not asked.is_set():
            asked.set()
            assert back.wait(LONG_S)
        return answer(own, ask, offer)

    monkeypatch.setattr(SecureSums, "answer", hold)
    monkeypatch.setattr(talk, "RETURN_S", LONG_S)
    data = local_data(deal(config.simulate, seed=config.run.seed))
    with Broker() as broker:
        links = Links(broker.url)
        with run_agents(links, tmp_path / "devices", data), ThreadPoolExecutor(1) as pool:
            link = links.link("server")
            run = pool.submit(runs.execute, config, text, link=link)
            assert asked.wait(LONG_S)
            broker.kill()
            broker.restart()
            back.set()
            run.result(LONG_S)
            link.close()

    assert final_state(tmp_path / "killed") == final_state(tmp_path / "undisturbed")
