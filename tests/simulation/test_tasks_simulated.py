"""Methods times tasks in simulation: those that average, slice, compress or generate weights learn any task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright import simulate as simulate_arrays
from fedwright.protocol.errors import ConfigError, DataError
from fedwright.server_runtime.methods import registry
from fedwright.server_runtime.methods.goal_check import ANY_GOAL
from fedwright.simulation.simulate import FleetEvaluation, simulate
from helpers.simulation import make_config

MODELS = "python:helpers.task_models:"
# What a method needs beside its name, by method; of masks also which layers get adapters.
SETTINGS: dict[str, dict[str, Any]] = {
    "adapters-private": {"targets": ["0", "1", "3"], "pretrain_rounds": 1},
    "framp": {"sizes": [1.0, 0.5]},
    "hasa": {"score": "features"},
    "scalefl": {"widths": [1.0, 0.5], "exits": [3, 1]},
}
# Masks take longer: methods that differ from another in the server's step alone are left to numbers.
ON_MASKS = sorted(set(ANY_GOAL) - {"scalefl", "fedavgm", "fedadam", "fedyogi", "slice-tuned", "pfedme", "feddropout"})
ABOUT_CLASSES = sorted(set(registry.METHODS) - set(ANY_GOAL))


def _numbers(folder: Path) -> str:
    """Two numbers that depend on small images."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((48, 1, 8, 8)).astype(np.float32)
    y = np.stack([x[:, 0, :4].mean((1, 2)), x[:, 0, 4:].mean((1, 2))], axis=1) * 5
    np.savez(folder / "numbers.npz", x=x, y=y.astype(np.float32))
    return f"npz:{folder}/numbers.npz"


def _masks(folder: Path) -> str:
    """Bright rectangles on a dark ground."""
    rng = np.random.default_rng(0)
    x, y = 0.3 * rng.standard_normal((40, 1, 8, 8)), np.zeros((40, 8, 8), np.int64)
    for image, mask in zip(x, y, strict=True):
        top, left = rng.integers(0, 5, 2)
        image[0, top : top + 3, left : left + 4] += 1.5
        mask[top : top + 3, left : left + 4] = 1
    np.savez(folder / "masks.npz", x=x.astype(np.float32), y=y)
    return f"npz:{folder}/masks.npz"


def _config(folder: Path, method: str, task: str, **simulated: Any) -> Any:
    source, model = (_numbers, "make_numbers") if task == "regress" else (_masks, "make_segmenter")
    # fedbn keeps normalisation layers, scalefl leaves through exits: each with a model that has them.
    own = {"fedbn": MODELS + "make_normed", "scalefl": "cnn-exits"} if task == "regress" else {}
    settings = dict(SETTINGS.get(method, {}))
    if method == "adapters-private" and task == "segment":
        settings["targets"] = ["0"]
    return make_config(
        folder,
        method={"name": method, **settings},
        model={"model": own.get(method, MODELS + model), "task": task},
        train={"batch": 8, "epochs": 2, "learning_rate": 0.05},
        simulate={"devices": 3, "rows": 40, "data": source(folder), "partition": "iid", **simulated},
    )


def _figures(evaluations: list[FleetEvaluation]) -> list[dict[str, float]]:
    return [entry.summary() for entry in evaluations]


@pytest.mark.parametrize("method", sorted(ANY_GOAL))
def test_a_method_predicts_numbers(tmp_path: Path, method: str) -> None:
    found = simulate(*_config(tmp_path, method, "regress"))

    assert len(found.outcome.metrics) == 2
    assert all(entry["updates"] == 3 for entry in found.outcome.metrics)
    first, last = _figures(found.evaluations)
    assert np.isfinite([*first.values(), *last.values()]).all()
    assert {"mae", "rmse", "rmse_worst", "r2"} <= last.keys()
    # Two rounds are few: what is sure is that nothing runs away and that something was learnt by somebody.
    assert first != last
    assert last["rmse"] < 1.5 * first["rmse"]


@pytest.mark.parametrize("method", ON_MASKS)
def test_a_method_finds_shapes(tmp_path: Path, method: str) -> None:
    found = simulate(*_config(tmp_path, method, "segment"))

    first, last = _figures(found.evaluations)
    assert {"iou", "iou_worst", "accuracy"} <= last.keys()
    assert 0 < last["iou"] <= 1
    assert first != last
    assert found.evaluations[-1].devices[0].accuracy > 0.3


@pytest.mark.parametrize("method", ABOUT_CLASSES)
def test_a_method_about_classes_refuses_by_name(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigError, match=f"method {method} is about single classes, but model.task is 'segment'"):
        _config(tmp_path, method, "segment")


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("hasa", {}, "set to score = 'counts', of classes"),
        ("framp", {"describe": "classes"}, "set to describe = 'classes'"),
    ],
)
def test_a_setting_about_classes_is_named(tmp_path: Path, method: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_config(tmp_path, method={"name": method, **settings}, model={"model": "mlp", "task": "regress"})


def test_classes_on_the_server_teach_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fedconv tunes on the server by classes, but model.task is 'regress'"):
        make_config(tmp_path, method={"name": "fedconv"}, model={"task": "regress"}, public={"rows": 20})


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards", "few-classes", "balanced-dirichlet", "stretches"])
def test_numbers_are_dealt_by_every_partition(tmp_path: Path, partition: str) -> None:
    simulated = {"partition": partition, "devices": 5, "rows": 48, "least": 2, "alpha": 1.0}
    config, text = _config(tmp_path, "fedavg", "regress", **simulated)

    assert len(simulate(config, text).evaluations[-1].devices) == 5


def test_a_series_is_dealt_in_stretches(tmp_path: Path) -> None:
    rows = [f"{np.sin(moment / 4):.4f},{np.cos(moment / 7):.4f}" for moment in range(200)]
    (tmp_path / "load.csv").write_text("\n".join(["load,wind", *rows]))
    source = f"csv:{tmp_path}/load.csv?targets=load&window=12&horizon=3"
    model = {"model": MODELS + "make_numbers", "task": "forecast"}
    simulated = {"devices": 2, "rows": 150, "data": source, "evaluate_every": 2}

    with pytest.raises(ConfigError, match="the windows of a series overlap"):
        simulate(*make_config(tmp_path, model=model, simulate={**simulated, "partition": "iid"}))
    found = simulate(*make_config(tmp_path, model=model, simulate={**simulated, "partition": "stretches"}))
    assert found.evaluations[-1].summary()["mae"] < 1


def test_other_data_than_the_task_is_named(tmp_path: Path) -> None:
    config = make_config(tmp_path, model={"task": "regress"})
    with pytest.raises(ConfigError, match=r"data set digits has single classes, but model.task is 'regress'"):
        simulate(*config)
    source = {"data": _masks(tmp_path) + "?task=segment"}
    with pytest.raises(ConfigError, match=r"is data for the task segment, but model.task is 'classify'"):
        simulate(*make_config(tmp_path, simulate=source))
    with pytest.raises(DataError, match="nothing to segment"):
        simulate(*make_config(tmp_path, model={"task": "segment"}, simulate={"data": _numbers(tmp_path)}))


def test_an_attack_on_classes_means_nothing_to_numbers(tmp_path: Path) -> None:
    config = _config(tmp_path, "fedavg", "regress", hostile=1, attack="label-flip")
    with pytest.raises(ConfigError, match=r"attack 'label-flip' is about single classes, but model.task is 'regress'"):
        simulate(*config)


def test_a_file_for_each_device_with_one_set_of_options(tmp_path: Path) -> None:
    folder = tmp_path / "devices"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for device in ("north", "south"):
        x = rng.standard_normal((30, 2))
        lines = [f"{a:.3f},{b:.3f},{a - b:.3f}" for a, b in x]
        (folder / f"{device}.csv").write_text("\n".join(["a,b,heat", *lines]))
    model = {"model": MODELS + "make_numbers", "task": "regress"}
    simulated = {"data": f"devices:{folder}?targets=heat", "evaluate_every": 2}

    found = simulate(*make_config(tmp_path, model=model, simulate=simulated))

    assert [device.device for device in found.evaluations[-1].devices] == ["north", "south"]


def test_arrays_of_numbers_from_a_program() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)).astype(np.float32)
    settings: dict[str, dict[str, Any]] = {"model": {"task": "regress"}, "simulate": {"processes": 0}}

    run = simulate_arrays(
        model=MODELS + "make_numbers", data=(x, x[:, :1]), devices=2, rounds=2, settings=settings, progress=False
    )

    assert {"mae", "rmse", "r2", "rmse_worst"} <= run.measures.keys()
    assert len(run.plot().axes) == 3
    with pytest.raises(ConfigError, match=r"read Run\.measures"):
        _ = run.accuracy
