"""`fedwright.simulate` and what comes of it."""

import gc
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import fedwright as fw
from fedwright.protocol.errors import BuildError, ConfigError, DataError
from fedwright.protocol.messages import Report
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.params.submodels import FedAvgParams
from fedwright.server_runtime.rounds import events

# In this process, and without a bar.
QUIET: dict[str, Any] = {"settings": {"simulate": {"processes": 0}}, "progress": False}


class Points(nn.Module):
    """Two layers, of a shape that it knows itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(torch.relu(self.body(x)))
        return answer


class Nothing(fw.Method):
    """A method that somebody has only begun to write."""


def examples(count: int = 240) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(count) % 3
    return (rng.normal(size=(count, 4)) + 3 * np.eye(4)[y]).astype(np.float32), y


class Listed(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """A data set as torch has it."""

    classes = ("ant", "bee", "cat")

    def __len__(self) -> int:
        return 240

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        x, y = examples()
        return torch.from_numpy(x[row]), int(y[row])


@pytest.fixture(scope="module")
def run() -> fw.Run:
    return fw.simulate(method="fedavg", model=Points, data=fw.Dataset(*examples()), devices=4, rounds=3, **QUIET)


def test_a_fleet_learns_from_ten_lines(run: fw.Run) -> None:
    assert run.accuracy > 0.8
    assert len(run.rounds) == 3
    assert [row["id"] for row in run.devices] == [f"device-{number}" for number in range(4)]
    assert repr(run).startswith("<Run fedavg: 3 rounds, 4 devices, accuracy ")


def test_frames(run: fw.Run) -> None:
    devices = run.frame()

    assert list(devices.index) == [row["id"] for row in run.devices]
    assert devices["samples"].sum() == sum(row["samples"] for row in run.devices)
    assert len(run.frame("rounds")) == 3
    assert run.frame("evaluations")["mean"].iloc[-1] == run.accuracy
    with pytest.raises(ConfigError, match="there is no table 'nothing'; choose one of devices"):
        run.frame("nothing")  # type: ignore[arg-type]


def test_a_plot_shows_every_device(run: fw.Run) -> None:
    over, each = run.plot().axes

    assert [line.get_label() for line in over.lines] == ["mean", "tenth percentile", "worst device"]
    assert len(each.patches) == 2 * len(run.devices)


def test_a_run_that_predicts_numbers_says_how_well() -> None:
    x, _ = examples(80)
    settings: dict[str, dict[str, Any]] = {"model": {"task": "regress"}, "simulate": {"processes": 0}}
    run = fw.simulate(model="mlp", data=(x, x[:, :1]), devices=2, rounds=1, settings=settings, progress=False)

    assert f"mae {run.measures['mae']:.3g}, " in repr(run)
    with pytest.raises(ConfigError, match=r"judged by mae, .* read Run\.measures"):
        _ = run.accuracy
    # A run over a broker has the figures of its rounds alone.
    served = fw.Run(run.config, {"folder": run.folder, "devices": run.devices, "metrics": run.rounds})
    assert served.measures["mae"] == run.rounds[-1]["mae_after"]
    assert f"mae {served.measures['mae']:.3g}, " in repr(served)
    assert [axes.get_title() for axes in served.plot().axes] == list(served.measures)


def test_a_run_over_a_broker_is_plotted_by_its_rounds(run: fw.Run) -> None:
    served = fw.Run(run.config, {"folder": run.folder, "devices": run.devices, "metrics": run.rounds})
    [accuracy] = served.plot().axes

    assert [np.size(line.get_xdata()) for line in accuracy.lines] == [3, 3]
    assert served.accuracy == np.mean([row["accuracy_after"] for row in run.devices])


def test_what_a_frame_needs_is_named(run: fw.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ConfigError, match=r'pip install "fedwright\[notebook\]"'):
        run.frame()


@pytest.mark.parametrize("device", ["", "device-2"])
def test_a_model_to_use_is_the_one_that_is_exported(run: fw.Run, tmp_path: Path, device: str) -> None:
    x, _ = examples()
    run.export(tmp_path / "model.onnx", device)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    exported = session.run(None, {session.get_inputs()[0].name: x})[0]

    with torch.no_grad():
        np.testing.assert_allclose(run.model(device)(torch.from_numpy(x)), exported, rtol=1e-4, atol=1e-5)


def test_a_device_that_is_not_there(run: fw.Run) -> None:
    with pytest.raises(ConfigError, match="no device 'device-9' has answered"):
        run.model("device-9")


def test_the_folder_of_a_run_that_is_not_kept_goes_with_it() -> None:
    run = fw.simulate(model=Points, data=examples(), devices=2, rounds=1, **QUIET)
    folder = run.folder
    assert (folder / "rounds.sqlite").exists()

    del run
    gc.collect()

    assert not folder.parent.exists()


def test_a_run_that_is_kept_goes_on_with_the_same_call(tmp_path: Path) -> None:
    call: dict[str, Any] = {"model": Points, "data": Listed(), "devices": 2, "keep": tmp_path / "study", **QUIET}
    fw.simulate(rounds=1, **call)
    longer = fw.simulate(rounds=2, **call)

    assert len(longer.rounds) == 2
    assert longer.folder == tmp_path / "study"
    with pytest.raises(ConfigError, match="was started with another config"):
        fw.simulate(rounds=2, seed=7, **call)


def test_an_instance_begins_with_its_own_weights() -> None:
    net = Points()
    with torch.no_grad():
        net.head.bias.fill_(5.0)
    still = {"settings": {"simulate": {"processes": 0}, "train": {"learning_rate": 1e-12}}, "progress": False}

    run = fw.simulate(model=net, data=examples(), devices=2, rounds=1, **still)  # type: ignore[arg-type]

    np.testing.assert_allclose(run.weights()["head.bias"], 5.0, rtol=1e-6)


def test_each_device_may_bring_its_own_data_by_its_name() -> None:
    x, y = examples()
    own = {"kitchen": (x[:80], y[:80]), "hall": fw.Dataset(x[80:], y[80:])}

    run = fw.simulate(model=Points, data=own, rounds=1, **QUIET)

    assert {row["id"]: row["samples"] for row in run.devices} == {"kitchen": 64, "hall": 128}


def test_what_happens_is_told_and_can_end_it() -> None:
    call: dict[str, Any] = {"model": Points, "data": examples(), "devices": 2, **QUIET}
    told: list[int] = []

    def watch(event: events.Event) -> None:
        if isinstance(event, events.RoundClosed):
            told.append(event.round)
            if len(told) == 2:
                raise RuntimeError("good enough")

    with pytest.raises(RuntimeError, match="good enough"):
        fw.simulate(rounds=5, on_event=watch, **call)

    assert told == [1, 2]


def test_tensors_that_have_a_gradient_are_data() -> None:
    x, y = examples(60)
    run = fw.simulate(
        model=Points, data=(torch.tensor(x, requires_grad=True), torch.tensor(y)), devices=2, rounds=1, **QUIET
    )

    assert sum(row["samples"] for row in run.devices) > 0


def test_a_model_is_exported_into_a_folder_that_is_made(run: fw.Run, tmp_path: Path) -> None:
    run.export(tmp_path / "models/of/today.onnx")

    assert (tmp_path / "models/of/today.onnx").stat().st_size > 0


def test_a_method_of_ones_own() -> None:
    met: list[int] = []

    class Counting(FedAvg):
        params = FedAvgParams

        def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
            met.append(len(reports))
            return super().assign(reports, round_number)

    fw.simulate(method=Counting, model=Points, data=examples(), devices=3, rounds=2, **QUIET)

    assert set(met) == {3}


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        ({"settings": {"train": {"epoch": 2}}}, ConfigError, r"simulate\(\) \[train\].*epoch"),
        ({"settings": {"trian": {}}}, ConfigError, "trian"),
        ({"method": "fedavgg"}, ConfigError, "there is no method 'fedavgg'"),
        ({"method": 3}, ConfigError, "3 is no method; give a name"),
        ({"data": 7}, DataError, "7 is no data; give fedwright.Dataset"),
        ({"data": {}}, ConfigError, "devices is 2 but the data names 0"),
        (
            {"data": {"a": examples(), "b": examples(), "c": examples()}},
            ConfigError,
            "devices is 2 but the data names 3",
        ),
        ({"data": {"a/b": examples(), "b": examples()}}, ConfigError, "the name of a device 'a/b' must be"),
        ({"data": "digitz"}, ConfigError, "unknown data set 'digitz'"),
        ({"data": "absent.npz"}, DataError, "there is no file or folder 'absent.npz'"),
        ({"data": None}, DataError, "None is no data; give fedwright.Dataset"),
        ({"settings": {"epochs": 3}}, ConfigError, "settings has 'epochs' = 3 but holds sections"),
        ({"data": (np.eye(3), np.eye(3))}, DataError, r"^data: y has shape \[3, 3\].*y\.argmax\(axis=1\)"),
        ({"model": lambda: nn.Linear(7, 3), "data": examples()}, BuildError, "^layer Linear does not run"),
        ({"method": Nothing, "data": examples()}, ConfigError, "Nothing': it lacks absorb, "),
    ],
    ids=[
        "setting",
        "section",
        "method",
        "no method",
        "no data",
        "no device",
        "other devices",
        "no name",
        "no data set",
        "no file",
        "nothing",
        "no section",
        "one-hot",
        "a model of another shape",
        "a method without hooks",
    ],
)
def test_mistakes_are_named_and_leave_nothing_behind(
    call: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with pytest.raises(error, match=sentence):
        fw.simulate(devices=2, rounds=1, progress=False, **call)

    assert not list(tmp_path.iterdir())
