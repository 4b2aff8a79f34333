"""`[train] trainable`: a part of a model trains and travels, the rest goes out once, packed where that is asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.method_setting import make_method, make_setting
from fedwright.server_runtime.methods.shared.partly_trained import METHODS
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_model import model_of_run
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import simulate
from helpers.resume import final_state
from helpers.simulation import local_data, make_config, run_agents


def _run(folder: Path, model: str = "mlp", method: str = "fedavg", **train: Any) -> Any:
    """A config of two rounds, with its text."""
    return make_config(
        folder,
        model={"model": model},
        method={"name": method},
        train={"batch": 32, "learning_rate": 0.1, **train},
        fleet={"devices": 2},
        simulate={"devices": 2, "rows": 160},
    )


def _changed(config: Any) -> set[str]:
    """The tensors that are other ones after the run than before it."""
    before = make_setting(config[0], model_of_run(config[0], "").spec).initial
    after = model_of_run(config[0], "").weights
    return {name for name in before if not np.array_equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        pytest.param({"trainable": "head"}, {"head.weight", "head.bias"}, id="head"),
        pytest.param({"trainable": "bias"}, {"encoder.fc1.1.bias", "encoder.fc2.0.bias", "head.bias"}, id="bias"),
        pytest.param(
            {"trainable": "last-2"},
            {"encoder.fc2.0.weight", "encoder.fc2.0.bias", "head.weight", "head.bias"},
            id="last layers",
        ),
        pytest.param({"trainable": ["encoder.fc1.*"]}, {"encoder.fc1.1.weight", "encoder.fc1.1.bias"}, id="patterns"),
        pytest.param(
            {"trainable": "lora-2"},
            {"encoder.fc1.1.weight", "encoder.fc2.0.weight", "head.weight", "head.bias"},
            id="adapters, merged, and the head",
        ),
    ],
)
def test_what_is_named_trains_and_nothing_else(tmp_path: Path, train: dict[str, Any], expected: set[str]) -> None:
    config = _run(tmp_path, **train)

    simulate(*config)

    assert _changed(config) == expected


@pytest.mark.parametrize("method", METHODS)
def test_every_averaging_method_trains_a_part(tmp_path: Path, method: str) -> None:
    config = _run(tmp_path, method=method, trainable="head")

    simulate(*config)

    assert _changed(config) == {"head.weight", "head.bias"}


def test_agents_and_simulation_end_alike_and_the_base_travels_once(tmp_path: Path) -> None:
    train = {"trainable": "lora-2", "frozen": "int4"}
    config = _run(tmp_path / "simulated", **train)
    simulate(*config)
    over_link = _run(tmp_path / "run", **train)
    broker = MemoryBroker()
    with run_agents(broker, tmp_path / "devices", local_data(deal(over_link[0].simulate, seed=over_link[0].run.seed))):
        link = broker.link("server")
        runs.execute(*over_link, link=link)
        link.close()

    assert final_state(tmp_path / "run") == final_state(tmp_path / "simulated")
    store = SqliteRoundStore(tmp_path / "run/run/rounds.sqlite")
    plans = [store.plan(Position(number, 0)) for number in (1, 2)]
    store.close()
    bases = {planned.task.frozen and planned.task.frozen.sha256 for plan in plans for planned in plan or ()}
    assert len(bases) == 1
    assert None not in bases


def test_a_run_does_not_go_on_with_another_base(tmp_path: Path) -> None:
    config = _run(tmp_path, trainable="head")
    simulate(*config)
    spec = model_of_run(config[0], "").spec
    other = make_method(_run(tmp_path, trainable="bias")[0], spec)
    state = make_method(config[0], spec).state()

    with pytest.raises(ConfigError, match="frozen part of the model is not the one that the run began with"):
        other.restore(state)


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ({"trainable": "tail"}, "trainable is 'tail'; choose all, head, bias"),
        ({"trainable": []}, "trainable is empty, so that nothing would train"),
        ({"frozen": "int8"}, "frozen is 'int8' but all of the model trains; set trainable too"),
    ],
)
def test_words_that_name_no_part_are_refused(tmp_path: Path, train: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        _run(tmp_path, **train)


@pytest.mark.parametrize(
    ("model", "method", "wanted", "reason"),
    [
        ("mlp", "heterofl", "head", "method heterofl needs the whole model, but train.trainable is 'head'"),
        ("mlp", "fedavg", ["layer9.*"], r"trainable has 'layer9.\*', which no parameter of mlp is called"),
        ("cnn-flat", "fedavg", "lora-2", "cnn-flat has no linear layer for adapters"),
    ],
)
def test_parts_that_a_model_or_method_lacks_are_refused(
    tmp_path: Path, model: str, method: str, wanted: Any, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        simulate(*_run(tmp_path, model, method, trainable=wanted))
