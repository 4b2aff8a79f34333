"""A device with too little memory for a task refuses with numbers, lives on, and is offered a task that fits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.device_runtime.emulate.profiles import ProfileValue, load_profile
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.run import execute
from helpers.served import start_agents

CONFIG = """
[run]
name = "small"
folder = "{folder}"
rounds = 1
[fleet]
broker = "{broker}"
devices = 2
join_timeout_s = 90
deadline_s = 90
[model]
model = "cnn-hasa"
[method]
name = "fedavg"
[train]
batch = 1024
"""
LIMIT_BYTES = 500_000_000


@pytest.mark.broker
@pytest.mark.slow
def test_a_task_beyond_the_memory_limit_is_refused_and_a_smaller_one_done(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(20, 3, 32, 32)).astype(np.float32), y=np.arange(20) % 4)
    large = load_profile("laptop")
    small = replace(large, agent_bytes=ProfileValue(LIMIT_BYTES, "nominal", "this test"))
    seen: list[events.Event] = []
    with Broker() as broker, EmulatedFleet(tmp_path / "logs") as fleet:
        text = CONFIG.format(folder=tmp_path, broker=broker.url)
        data = dict.fromkeys(("large", "small"), f"npz:{tmp_path / 'data.npz'}")
        start_agents(fleet, broker.url, tmp_path, data, profiles={"large": large, "small": small}, once=True)
        link = connect(broker.url, client_id="server")
        outcome = execute(config_from_text(text, where="test"), text, link=link, observer=seen.append)
        link.close()
        exits = {device: ended.exit_code for device, ended in fleet.wait(120).items()}

    (refusal,) = (event for event in seen if isinstance(event, events.TaskFailed) and event.round == 1)
    assert refusal.device == "small"
    assert "MB free" in refusal.detail
    assert [event.device for event in seen if isinstance(event, events.LessOffered)] == ["small"]
    assert outcome.metrics[0]["updates"] == 2
    assert exits == {"large": 0, "small": 0}
