"""Devices that lie to an edge which stands for them, all in processes of their own: the run ends well."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol.link.broker import Broker
from helpers.data_files import save_points
from helpers.liar import USUAL, Liar

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HONEST = ("a", "b", "c", "d", "e")
RUN_S = 240.0
RUN = """
[run]
name = "night"
rounds = 2
[fleet]
broker = "{broker}"
devices = 1
join_timeout_s = 120
deadline_s = 60
[model]
model = "mlp"
[method]
name = "fedavg"
[train]
epochs = 8
"""
EDGE = """
[edge]
name = "site"
stands = true
once = true
folder = "edges"
[host]
broker = "{broker}"
[devices]
broker = "{broker}"
least = 8
"""


class Poor(Liar):
    """Says that it has no memory."""

    free_bytes = 1


def test_one_device_decides_nothing_for_all_behind_its_edge(tmp_path: Path) -> None:
    with Broker() as broker, ExitStack() as stack:
        (tmp_path / "run.toml").write_text(RUN.format(broker=broker.url))
        (tmp_path / "edge.toml").write_text(EDGE.format(broker=broker.url))
        commands = [["server", "edge", "edge.toml"]]
        for seed, device in enumerate(HONEST):
            save_points(tmp_path / f"{device}.npz", seed=seed)
            words = ["--broker", broker.url, "--device", device, "--edge", "site", "--data", f"npz:{device}.npz"]
            commands.append(["device", "run", *words, "--state", "state", "--threads", "1", "--once"])
        most = structs.replace(USUAL, samples=2**53, holdout=2**53)
        backwards = np.float32(-100.0)
        liars = [
            Liar(broker.url, "heavy", said=most, samples=2**53, value=backwards, fleet="site"),
            Poor(broker.url, "poor", fleet="site"),
            Liar(broker.url, "named", said=structs.replace(USUAL, class_names=["x", "y"]), fleet="site"),
        ]
        for liar in liars:
            stack.callback(liar.stop)
        with (tmp_path / "log").open("wb") as log:
            for command in [*commands, ["server", "run", "run.toml", "--json", "result.json"]]:
                words = [sys.executable, "-m", "fedwright", *command]
                process = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log)
                stack.callback(process.wait)
                stack.callback(process.kill)
        code = process.wait(RUN_S)

    assert code == 0, (tmp_path / "log").read_text()
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["rounds_done"], result["complete"]) == (2, True)
    assert [metrics["updates"] for metrics in result["metrics"]] == [1.0, 1.0]
    # Five honest devices of eight learn, though the largest claim comes with a change the other way.
    assert result["metrics"][-1]["accuracy_after"] > 0.8
