"""Devices that name their classes: whatever folders each has, the fleet learns one list of classes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from fedwright.cli.main import main
from fedwright.device_runtime import data
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.device_runtime.equipment import SPLIT_SEED
from fedwright.protocol.errors import ConfigError, FedwrightError
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.simulation.simulate import Simulated, simulate
from helpers.fleet import FLEET, WAIT_S, Running
from helpers.image_folders import draw, write_folder
from helpers.present import present
from helpers.resume import final_state
from helpers.served import served_config, start_agents
from helpers.simulation import make_config, run_agents, run_hiding_agents


@pytest.mark.broker
@pytest.mark.slow
def test_two_agents_with_other_classes_learn_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cat/ fox/` here and `dog/ fox/` there: both call their first class 0, and the fleet neither."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "a", {"cat": 30, "fox": 30}, seed=1)
    write_folder(tmp_path / "b", {"dog": 30, "fox": 30}, seed=2)
    with Broker() as broker, EmulatedFleet(tmp_path / "logs") as fleet:
        train = "[train]\nlearning_rate = 0.2\nbatch = 8"
        Path("run.toml").write_text(served_config(broker.url, name="zoo", rounds=6, more=train))
        start_agents(fleet, broker.url, tmp_path, {"a": "images:a", "b": "images:b"}, once=True)
        assert main(["server", "run", "run.toml"]) == 0
        assert {device: ended.exit_code for device, ended in fleet.wait(30).items()} == {"a": 0, "b": 0}

    model = onnx.load("runs/zoo/model.onnx")
    names = json.loads({entry.key: entry.value for entry in model.metadata_props}["classes"])
    assert names == ["cat", "dog", "fox"]
    session = ort.InferenceSession("runs/zoo/model.onnx", providers=["CPUExecutionProvider"])
    for name in names:
        images = draw(name, 20, seed=9)[:, None].astype(np.float32) / 255
        logits = session.run(None, {session.get_inputs()[0].name: images})[0]
        assert [names[label] for label in logits.argmax(axis=1)] == [name] * 20
    capsys.readouterr()
    assert main(["server", "status", "runs/zoo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == names
    assert main(["server", "export", "--device", "a", "a.onnx"]) == 0
    assert json.loads(onnx.load("a.onnx").metadata_props[0].value) == names


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """The data of three devices, each with other classes, and the folder that holds it."""
    root = tmp_path / "fleet"
    write_folder(root / "pi-1", {"cat": 20, "fox": 10}, seed=1)
    write_folder(root / "pi-2", {"dog": 20, "fox": 12}, seed=2)
    write_folder(root / "pi-3", {"fox": 9, "ant": 11}, seed=3)
    return root


def load_all(root: Path) -> dict[str, Any]:
    return {
        path.name: data.load(str(path), holdout_ratio=AgentConfig.holdout_ratio, seed=SPLIT_SEED)
        for path in sorted(root.iterdir())
    }


def make(folder: Path, root: Path, **sections: Any) -> tuple[RunConfig, str]:
    tables = {"model": {"model": "mlp"}, "train": {"batch": 8, "learning_rate": 0.2}, **sections}
    simulated = {"data": f"devices:{root}", "evaluate_every": 0, **tables.pop("simulate", {})}
    return make_config(folder, fleet={"devices": 3}, simulate=simulated, **tables)


def run_both(
    tmp_path: Path, config: RunConfig, text: str, root: Path, agents: Callable[..., Any] = run_agents
) -> Simulated:
    """The run over a broker in memory, then simulated."""
    broker = MemoryBroker()
    with agents(broker, tmp_path / "devices", load_all(root)):
        link = broker.link("server")
        runs.execute(config, text, link=link)
        link.close()
    return simulate(replace(config, run=replace(config.run, folder=str(tmp_path / "simulated"))), text)


def names_of(folder: Path) -> tuple[str, ...]:
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        return present(store.run()).class_names
    finally:
        store.close()


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "hasa", "budget": 0.6, "most": 1.0, "least": 0.4},
        {"name": "heterofl", "levels": {"sizes": [1.0, 0.5]}, "masked": True},
        {"name": "framp", "sizes": [1.0, 0.5]},
        {"name": "fedgh"},
    ],
    ids=lambda method: method["name"],
)
def test_a_named_fleet_ends_with_the_bytes_of_its_simulation(
    tmp_path: Path, fleet: Path, method: dict[str, float | list[float] | str]
) -> None:
    config, text = make(tmp_path / "real", fleet, method=method)

    simulated = run_both(tmp_path, config, text, fleet)

    assert names_of(tmp_path / "real") == names_of(tmp_path / "simulated") == ("ant", "cat", "dog", "fox")
    assert final_state(tmp_path / "real") == final_state(tmp_path / "simulated")
    assert simulated.evaluations[-1].devices[0].n == 6


def test_the_order_of_names_does_not_change_what_is_learned(tmp_path: Path, fleet: Path) -> None:
    """With the classes listed backwards every device still learns its own."""
    found = []
    for number, classes in enumerate((None, ["fox", "dog", "cat", "ant", "gnu"])):
        model = {"model": "mlp"} if classes is None else {"model": "mlp", "classes": classes}
        config, text = make(tmp_path / str(number), fleet, model=model, run={"rounds": 15})
        found.append(simulate(config, text).evaluations[-1])

    assert names_of(tmp_path / "1") == ("fox", "dog", "cat", "ant", "gnu")
    assert [device.accuracy for one in found for device in one.devices] == [1.0] * 6


def test_a_class_that_the_run_does_not_know_is_named(tmp_path: Path, fleet: Path) -> None:
    """A device that comes later with such a class is turned away with its name; the run goes on."""
    late = write_folder(tmp_path / "late", {"wolf": 8, "fox": 8})
    config, text = make(tmp_path / "real", fleet)
    broker = MemoryBroker()
    newcomers: list[Any] = []
    turned: list[Any] = []

    def observe(event: Any) -> None:
        if isinstance(event, events.RoundClosed) and not newcomers:
            own = data.load(str(late), holdout_ratio=0.2, seed=0)
            newcomers.append(Running(broker, "pi-4", tmp_path / "devices", data=own, fleet=FLEET))
        if isinstance(event, events.DeviceTurnedAway):
            turned.append(event)

    with run_agents(broker, tmp_path / "devices", load_all(fleet)):
        link = broker.link("server")
        runs.execute(config, text, link=link, observer=observe)
        link.close()
    newcomers[0].thread.join(WAIT_S)
    newcomers[0].stop()

    assert [event.device for event in turned] == ["pi-4"]
    assert "the class 'wolf' is none of the run's classes (ant, cat, dog, fox)" in str(newcomers[0].error)


def numbered(root: Path) -> None:
    """Data of another device, whose classes are numbers."""
    rows = np.concatenate([draw("cat", 10, seed=5), draw("ant", 10, seed=6)])[:, None]
    np.savez(root / "pi-4.npz", x=rows, y=np.repeat([2, 3], 10))


def test_names_and_numbers_in_one_fleet_are_refused_unless_the_config_lists_the_classes(
    tmp_path: Path, fleet: Path
) -> None:
    numbered(fleet)
    config, text = make(tmp_path / "a", fleet)
    with pytest.raises(FedwrightError, match=r"pi-4 was turned away: its classes are numbers but the run's have names"):
        simulate(config, text)

    listed = {"model": "mlp", "classes": ["fox", "dog", "cat", "ant"]}
    config, text = make(tmp_path / "b", fleet, model=listed, run={"rounds": 15})
    last = simulate(config, text).evaluations[-1]
    assert {device.device: device.accuracy for device in last.devices}["pi-4"] == 1.0


def test_the_config_must_list_all_classes(tmp_path: Path, fleet: Path) -> None:
    config, text = make(tmp_path / "a", fleet, model={"model": "mlp", "classes": ["cat", "dog", "fox"]})
    with pytest.raises(FedwrightError, match=r"pi-3 was turned away: the class 'ant' is none of .*cat, dog, fox"):
        simulate(config, text)

    config, text = make(tmp_path / "b", fleet, model={"model": "mlp", "classes": 3})
    with pytest.raises(ConfigError, match=r"model.classes is 3 but the devices have 4 classes \(ant, cat, dog, fox\)"):
        simulate(config, text)


HASA = {"name": "hasa", "budget": 0.6, "most": 1.0, "least": 0.4}
LISTED = {"model": "mlp", "classes": ["fox", "ant", "dog", "cat"]}


def test_hidden_counts_are_summed_in_the_order_of_the_run(tmp_path: Path, fleet: Path) -> None:
    """The sum over devices with different names gives the widths and bytes that open counts give."""
    hidden, text = make(
        tmp_path / "real",
        fleet,
        model=LISTED,
        method={**HASA, "secure_sum": True},
        simulate={"hide_counts": True},
    )
    simulated = run_both(tmp_path, hidden, text, fleet, agents=run_hiding_agents)
    assert final_state(tmp_path / "real") == final_state(tmp_path / "simulated")

    seen, text = make(tmp_path / "open", fleet, model=LISTED, method=HASA)
    widths = {device: record.width for device, record in simulate(seen, text).outcome.devices.items()}
    assert {device: record.width for device, record in simulated.outcome.devices.items()} == widths
    assert len(set(widths.values())) > 1


def test_hidden_names_need_a_list(tmp_path: Path, fleet: Path) -> None:
    method = {**HASA, "secure_sum": True}
    config, text = make(tmp_path / "a", fleet, method=method, simulate={"hide_counts": True})
    with pytest.raises(ConfigError, match="device pi-1 keeps the names of its classes to itself; list them"):
        simulate(config, text)


def test_names_pass_through_edges(tmp_path: Path, fleet: Path) -> None:
    """An edge puts updates of devices with other classes together, whose labels are in the run's numbering."""
    config, text = make(tmp_path / "edged", fleet, run={"rounds": 15}, simulate={"edges": 2})
    last = simulate(config, text).evaluations[-1]
    assert names_of(tmp_path / "edged") == ("ant", "cat", "dog", "fox")
    assert [device.accuracy for device in last.devices] == [1.0] * 3


def test_a_resumed_run_keeps_its_list(tmp_path: Path, fleet: Path) -> None:
    """The list is made once: a class that nobody brings back stays, and a new one stays out."""
    config, text = make(tmp_path / "run", fleet)
    simulate(config, text)
    (fleet / "pi-3" / "ant").rename(fleet / "pi-3" / "bee")
    more = replace(config, run=replace(config.run, rounds=3))
    with pytest.raises(FedwrightError, match=r"the class 'bee' is none of the run's classes \(ant, cat, dog, fox\)"):
        simulate(more, text)
    assert names_of(tmp_path / "run") == ("ant", "cat", "dog", "fox")
