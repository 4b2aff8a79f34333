"""What reports carry over a link: the class indicator, and further facts where a method asks and the owner agrees."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from fedwright.cli.main import main
from fedwright.device_runtime.data import load
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.device_runtime.owner_rules import OwnerRules
from fedwright.device_runtime.policy import Policy
from fedwright.protocol import codec, topics
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.messages import Report
from fedwright.server_runtime.config import RunConfig
from fedwright.simulation.dealing import deal
from helpers.fleet import FLEET, Running
from helpers.resume import execute, final_state, simulated_state
from helpers.served import start_agents
from helpers.simulation import local_data, make_config


def live(config: RunConfig, text: str, folder: Path, **changes: dict[str, Any]) -> dict[str, list[Report]]:
    """Run over a broker in memory; every report that anybody on it could read, by device."""
    broker = MemoryBroker()
    spy, heard = broker.link("spy"), dict[str, list[Report]]()
    spy.subscribe(topics.up_all(FLEET))
    with ExitStack() as stack:
        for device, own in local_data(deal(config.simulate, seed=config.run.seed)).items():
            more = {"data": own, **changes.get(device.replace("-", "_"), {})}
            stack.callback(Running(broker, device, folder / "devices", **more).stop)
        execute(config, text, broker)
    while (received := spy.receive(0)) is not None:
        envelope = codec.decode(received.payload)
        if isinstance(envelope.body, Report):
            heard.setdefault(envelope.sender, []).append(envelope.body)
    return heard


@pytest.mark.parametrize(
    ("method", "facts"),
    [
        ({"name": "hyperflora", "pretrain_rounds": 1, "pairs": False}, set()),
        ({"name": "hasa", "budget": 0.6}, {"class_counts"}),
        ({"name": "framp"}, {"descriptor"}),
    ],
    ids=["hyperflora", "hasa", "framp"],
)
def test_a_method_hears_what_it_asks_for_and_ends_as_simulated(
    tmp_path: Path, method: dict[str, Any], facts: set[str]
) -> None:
    model = {"model": "cnn-lora"} if method["name"] == "hyperflora" else {"model": "cnn-small"}
    simulate = {"rows": 200, "evaluate_every": 0}
    config, text = make_config(tmp_path / "live", method=method, model=model, simulate=simulate)

    heard = live(config, text, tmp_path)

    assert final_state(tmp_path / "live") == simulated_state(config, text, tmp_path / "simulated")
    data = [report.data for reports in heard.values() for report in reports]
    assert {1} >= {count for one in data if not one.counted for count in one.class_counts or ()} - {0}
    assert any(one.counted for one in data) == ("class_counts" in facts)
    assert any(one.descriptor is not None for one in data) == ("descriptor" in facts)
    assert all(one.pixel_std is None and one.score_counts is None for one in data)


def test_an_owner_who_does_not_agree_is_not_overruled(tmp_path: Path) -> None:
    config, text = make_config(
        tmp_path / "live",
        method={"name": "hasa", "budget": 0.6},
        simulate={"rows": 200, "evaluate_every": 0},
    )

    heard = live(config, text, tmp_path, device_1={"owner": OwnerRules(Policy(tells=()), tmp_path / "owner")})

    assert not any(report.data.counted for report in heard["device-1"])
    assert any(report.data.counted for report in heard["device-0"])


@pytest.mark.broker
@pytest.mark.slow
def test_a_device_without_data_gets_a_model_for_its_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, _ = make_config(tmp_path, simulate={"devices": 2, "rows": 120})
    for device, own in local_data(deal(config.simulate, seed=1)).items():
        np.savez(f"{device}.npz", x=own.x, y=own.y, classes=10)
    with Broker() as broker, EmulatedFleet(tmp_path / "logs") as fleet:
        Path("run.toml").write_text(
            f'[run]\nname = "run"\nrounds = 3\n[fleet]\nbroker = "{broker.url}"\ndevices = 3\njoin_timeout_s = 60\n'
            'deadline_s = 60\n[model]\nmodel = "cnn-lora"\n[method]\nname = "hyperflora"\npretrain_rounds = 1\n'
            "pairs = false\nmask_logits = true\n"
        )
        start_agents(fleet, broker.url, tmp_path, {"bystander": "classes:3,7"}, once=True)
        start_agents(fleet, broker.url, tmp_path, {f"device-{n}": f"npz:device-{n}.npz" for n in (0, 1)}, once=True)
        assert main(["server", "run", "run.toml"]) == 0
        assert {ended.exit_code for ended in fleet.wait(120).values()} == {0}

    assert main(["server", "export", "--device", "bystander", "own.onnx"]) == 0
    session = ort.InferenceSession("own.onnx")
    x = load("npz:device-0.npz", holdout_ratio=0.0, seed=0).x[:20]
    (logits,) = session.run(["logits"], {session.get_inputs()[0].name: x})
    assert set(logits.argmax(axis=1).tolist()) <= {3, 7}
