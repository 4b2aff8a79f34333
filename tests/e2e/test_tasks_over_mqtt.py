"""Numbers to predict, several classes at once, images to segment, series and text: from files on devices to figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.device_runtime import data
from fedwright.device_runtime.data.local import LocalData
from fedwright.protocol.errors import ConfigError, DeviceError
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.rounds import events
from helpers.fleet import WAIT_S, Running
from helpers.resume import Links
from helpers.simulation import make_config, run_agents

MODELS = "python:helpers.task_models:"


def _table(path: Path, rng: np.random.Generator) -> str:
    """Two numbers that depend on three others."""
    x = rng.standard_normal((80, 3))
    y = x @ [[1.0, -0.5], [0.5, 2.0], [0.0, 1.0]] + 0.05 * rng.standard_normal((80, 2))
    rows = [",".join(f"{value:.4f}" for value in row) for row in np.hstack([x, y])]
    path.with_suffix(".csv").write_text("\n".join(["a,b,c,heat,light", *rows]))
    return f"csv:{path.with_suffix('.csv')}?targets=heat,light"


def _several(path: Path, rng: np.random.Generator) -> str:
    """Three classes, each there or not."""
    x = rng.standard_normal((80, 4)).astype(np.float32)
    np.savez(path, x=x, y=(x[:, :3] + x[:, 1:] > 0).astype(np.int64))
    return f"npz:{path}.npz?task=multilabel"


def _shapes(path: Path, rng: np.random.Generator) -> str:
    """Bright rectangles on a dark ground; the mask says where."""
    x, y = 0.3 * rng.standard_normal((40, 1, 8, 8)), np.zeros((40, 8, 8), np.int64)
    for image, mask in zip(x, y, strict=True):
        top, left = rng.integers(0, 5, 2)
        image[0, top : top + 3, left : left + 4] += 1.5
        mask[top : top + 3, left : left + 4] = 1
    np.savez(path, x=x.astype(np.float32), y=y)
    return f"npz:{path}.npz?task=segment"


def _series(path: Path, rng: np.random.Generator) -> str:
    """Two waves, of which the first is forecast."""
    time = np.arange(140) + rng.integers(0, 50)
    values = np.stack([np.sin(time / 4), np.cos(time / 7)], axis=1)
    rows = [f"{a:.4f},{b:.4f}" for a, b in values]
    path.with_suffix(".csv").write_text("\n".join(["load,wind", *rows]))
    return f"csv:{path.with_suffix('.csv')}?targets=load&window=12&horizon=3"


def _text(path: Path, rng: np.random.Generator) -> str:
    """The same few words over and over."""
    path.with_suffix(".txt").write_text(" ".join(rng.choice(["a", "an", "and"], 400)))
    return f"text:{path.with_suffix('.txt')}?window=16"


# task: (file, model, learning rate, the figure that must get better, whether more is better)
TASKS: dict[str, tuple[Any, str, float, str, bool]] = {
    "regress": (_table, "make_numbers", 0.1, "rmse", False),
    "multilabel": (_several, "make_numbers", 0.3, "f1", True),
    "segment": (_shapes, "make_segmenter", 0.2, "iou", True),
    "forecast": (_series, "make_numbers", 0.1, "mae", False),
    "language": (_text, "make_reader", 0.5, "perplexity", False),
}


def _devices(folder: Path, task: str) -> dict[str, LocalData]:
    folder.mkdir()
    made = {f"pi-{n}": TASKS[task][0](folder / f"pi-{n}", np.random.default_rng(n)) for n in range(2)}
    return {device: data.load(source, holdout_ratio=0.2, seed=0) for device, source in made.items()}


def _config(folder: Path, task: str, method: str = "fedavg") -> Any:
    _, model, rate, _, _ = TASKS[task]
    return make_config(
        folder,
        method={"name": method},
        model={"model": MODELS + model, "task": task},
        fleet={"devices": 2},
        train={"batch": 8, "epochs": 3, "learning_rate": rate},
    )


def _figures(links: Any, folder: Path, devices: dict[str, LocalData], config: Any) -> list[dict[str, float]]:
    """What every round says of itself."""
    closed: list[dict[str, float]] = []

    def observe(event: Any) -> None:
        if isinstance(event, events.RoundClosed):
            closed.append(dict(event.metrics))

    with run_agents(links, folder, devices):
        link = links.link("server")
        runs.execute(*config, link=link, observer=observe)
        link.close()
    return closed


@pytest.mark.broker
def test_a_segmentation_is_learnt_over_mqtt(tmp_path: Path) -> None:
    devices = _devices(tmp_path / "data", "segment")
    with Broker() as broker:
        closed = _figures(Links(broker.url), tmp_path / "devices", devices, _config(tmp_path / "run", "segment"))

    assert closed[-1]["iou_after"] > closed[0]["iou_before"] + 0.1
    assert "accuracy_before" in closed[0]


@pytest.mark.parametrize("task", ["regress", "multilabel", "forecast", "language"])
def test_every_task_gets_better_by_its_own_figure(tmp_path: Path, task: str) -> None:
    *_, figure, more = TASKS[task]
    closed = _figures(
        MemoryBroker(), tmp_path / "devices", _devices(tmp_path / "data", task), _config(tmp_path / "run", task)
    )

    gained = closed[-1][f"{figure}_after"] - closed[0][f"{figure}_before"]
    assert (gained > 0) is more
    assert abs(gained) > 0.02


@pytest.mark.parametrize("method", ["fedrolex", "pfedhn", "scaffold"])
def test_slicing_generating_and_correcting_methods_regress(tmp_path: Path, method: str) -> None:
    closed = _figures(
        MemoryBroker(),
        tmp_path / "devices",
        _devices(tmp_path / "data", "regress"),
        _config(tmp_path / "run", "regress", method),
    )

    assert closed[-1]["rmse_after"] < closed[0]["rmse_before"]


def test_a_method_about_classes_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"method fedmd is about single classes, but model.task is 'regress'"):
        _config(tmp_path / "run", "regress", "fedmd")


def test_a_device_with_other_labels_is_turned_away(tmp_path: Path) -> None:
    devices = _devices(tmp_path / "data", "regress")
    x = np.zeros((20, 3), np.float32)
    np.savez(tmp_path / "late.npz", x=x, y=np.arange(20) % 2)
    own = data.load(str(tmp_path / "late.npz"), holdout_ratio=0.2, seed=0)
    broker, late = MemoryBroker(), list[Running]()
    config = _config(tmp_path / "run", "regress")

    def observe(event: Any) -> None:
        if isinstance(event, events.RoundClosed) and not late:
            late.append(Running(broker, "late", tmp_path / "devices", data=own))

    with run_agents(broker, tmp_path / "devices", devices):
        link = broker.link("server")
        runs.execute(*config, link=link, observer=observe)
        link.close()
    late[0].thread.join(WAIT_S)
    late[0].stop()
    assert isinstance(late[0].error, DeviceError)
    assert "its data is for the task classify but the run's is regress" in str(late[0].error)
