"""An ONNX file is trained by every averaging method: real agents, a real broker."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fedwright.device_runtime import data
from fedwright.device_runtime.data.local import LocalData
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.rounds import events
from helpers.fleet import FLEET
from helpers.onnx_files import small
from helpers.resume import Links
from helpers.simulation import make_config, run_agents

METHODS = (
    *("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "scaffold", "fedbn", "head-private", "encoder-private"),
    *("standalone", "per-fedavg", "pfedme"),
)


def _devices(folder: Path) -> dict[str, LocalData]:
    """Images whose bright half says their class."""
    found = {}
    for number in range(2):
        rng = np.random.default_rng(number)
        y = rng.integers(0, 10, 48)
        x = 0.2 * rng.standard_normal((48, 1, 8, 8)) + 0.3 * y[:, None, None, None]
        np.savez(folder / f"pi-{number}.npz", x=x.astype(np.float32), y=y)
        found[f"pi-{number}"] = data.load(str(folder / f"pi-{number}.npz"), holdout_ratio=0.25, seed=0)
    return found


@pytest.mark.broker
def test_every_averaging_method_trains_an_onnx_file_over_mqtt(tmp_path: Path) -> None:
    model, devices = small(tmp_path / "small.onnx", batch=1), _devices(tmp_path)
    closed: dict[str, Any] = {}
    with Broker() as broker:
        for method in METHODS:
            config = make_config(
                tmp_path / "runs",
                rounds=1,
                run={"name": method},
                fleet={"devices": 2, "name": FLEET},
                model={"model": model},
                method={"name": method},
                train={"batch": 12, "epochs": 8, "learning_rate": 0.05},
                export={"global_model": True},
            )
            links = Links(broker.url)

            def observe(event: Any, method: str = method) -> None:
                if isinstance(event, events.RoundClosed):
                    closed[method] = event.metrics

            with run_agents(links, tmp_path / "agents" / method, devices):
                link = links.link("server")
                runs.execute(*config, link=link, observer=observe)
                link.close()

    assert closed.keys() == set(METHODS)
    assert [method for method in METHODS if closed[method]["loss"] >= closed[method]["loss_before"]] == []
    assert all((tmp_path / "runs" / method / "model.onnx").exists() for method in METHODS)
    exported = onnx.load(tmp_path / "runs" / "fedavg" / "model.onnx")
    assert {"conv.kernel.0", "bn.mean"} <= {tensor.name for tensor in exported.graph.initializer}
