"""The client that the page on the wire protocol prints, which knows nothing of our code, takes part in a run."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwright as fw
from fedwright.protocol.link.broker import Broker
from helpers.tools import REPO

PAGE = (REPO / "docs/concepts/wire-protocol.md").read_text()


def examples(seed: int) -> fw.Dataset:
    rng = np.random.default_rng(seed)
    y = np.arange(90) % 3
    return fw.Dataset((rng.normal(size=(90, 4)) + 3 * np.eye(4)[y]).astype(np.float32), y)


@pytest.mark.broker
def test_a_client_written_from_the_page_trains_with_ours(tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n# second_client\.py\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "second_client.py").write_text(program)
    data = examples(1)
    np.savez(tmp_path / "data.npz", x=data.x, y=data.y)
    with Broker() as broker:
        config: dict[str, dict[str, Any]] = {
            "method": {"name": "fedavg"},
            "model": {"model": "mlp"},
            "run": {"rounds": 3, "folder": str(tmp_path / "runs")},
            "train": {"epochs": 3, "batch": 16},
            "fleet": {"broker": broker.url, "devices": 2, "quorum_ratio": 1.0, "deadline_s": 120.0},
        }
        port = broker.url.rsplit(":", 1)[-1]
        call = [sys.executable, "-I", "second_client.py", "127.0.0.1", port, "default", "second", "data.npz"]
        client = subprocess.Popen(call, cwd=tmp_path)
        try:
            with (
                fw.Server(config) as server,
                fw.Device(broker.url, examples(2), device="ours", state=tmp_path / "state"),
            ):
                run = server.wait(150)
            code = client.wait(60)
        finally:
            client.kill()
            client.wait()

    assert code == 0
    assert [row["updates"] for row in run.rounds] == [2, 2, 2]
    second = next(row for row in run.devices if row["id"] == "second")
    assert second["samples"] == 90
    assert run.rounds[-1]["loss"] < run.rounds[0]["loss_before"]


def test_it_imports_nothing_of_ours() -> None:
    assert not re.search(r"^(import|from) .*fedwright", PAGE, flags=re.MULTILINE)
