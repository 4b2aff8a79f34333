"""What a device gets: the wheel with `[device]` alone, in a fresh virtual environment, does a whole round."""

import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.run import execute
from helpers.layout import DEVICE_SIDE, below, sources_of
from helpers.tools import REPO, make_environment, pip_install, run

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

ABSENT = ["torch", "onnx", "sklearn", "scipy", "matplotlib", "rich", "amqtt"]
# numpy and onnxruntime are nearly all of it; torch alone would be 750 MB.
MAX_INSTALLED_BYTES = 250e6
DEVICES = ["board-a", "board-b"]
FOLDERS = ["protocol", "device_runtime", "server_runtime", "simulation", "profiles", "benchmarks"]


@pytest.fixture(scope="module")
def device_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has `fedwright[device]` and nothing else."""
    folder = tmp_path_factory.mktemp("device")
    python = make_environment(folder / "venv")
    pip_install(python, f"fedwright[device] @ {wheel.as_uri()}")
    return python


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each device's own part of a real data set."""
    folder = tmp_path_factory.mktemp("shares")
    digits = load_digits()
    x, y = (digits.images[:, None] / 16).astype(np.float32), digits.target.astype(np.int64)
    paths = {}
    for number, device in enumerate(DEVICES):
        paths[device] = folder / f"{device}.npz"
        np.savez(paths[device], x=x[number : 600 : len(DEVICES)], y=y[number : 600 : len(DEVICES)])
    return paths


def bare_environment(home: Path) -> dict[str, str]:
    """Variables of a login on a board: nothing of the developer's Python leaks in."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("fedwright/")}
    tracked = run(["git", "-C", str(REPO), "ls-files", "fedwright", *FOLDERS]).splitlines()
    own = {name for name in tracked if name.startswith("fedwright/") and not (REPO / name).is_symlink()}
    linked = {f"fedwright/{name}" for name in tracked if not name.startswith(("fedwright/", "benchmarks/results/"))}

    assert packed == own | linked
    assert len(linked) > 300


def test_the_device_side_imports_from_the_wheel(device_python: Path, tmp_path: Path) -> None:
    names = [module.name for module in sources_of(REPO) if any(below(module.name, side) for side in DEVICE_SIDE)]
    program = "import importlib, sys; print(len([importlib.import_module(name) for name in sys.argv[1:]]))"

    said = run([str(device_python), "-I", "-c", program, *names], env=bare_environment(tmp_path))

    assert int(said) == len(names) > 15


def test_nothing_heavy_is_importable(device_python: Path) -> None:
    program = (
        "import importlib.util, json, sys; print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n)]))"
    )

    found = json.loads(run([str(device_python), "-I", "-c", program, *ABSENT, "onnxruntime", "fedwright"]))

    assert found == ["onnxruntime", "fedwright"]


def test_installed_size(device_python: Path, record_testsuite_property: Callable[..., Any]) -> None:
    [site] = device_python.parents[1].glob("lib/python3*/site-packages")
    installed = [
        path
        for path in site.rglob("*")
        if path.is_file() and path.relative_to(site).parts[0].split("-")[0] not in ("pip", "setuptools")
    ]

    size = sum(path.stat().st_size for path in installed)

    record_testsuite_property("device_install_bytes", size)
    assert size < MAX_INSTALLED_BYTES


def test_doctor_is_content(device_python: Path, shares: dict[str, Path], tmp_path: Path) -> None:
    with Broker() as broker:
        said = run(
            [
                str(device_python.with_name("fedwright")),
                *("device", "doctor", "--json", "--broker", broker.url),
                *("--data", f"npz:{shares['board-a']}", "--state", str(tmp_path / "state")),
            ],
            env=bare_environment(tmp_path),
        )

    findings = json.loads(said)
    assert [finding for finding in findings if finding["level"] == "fail"] == []
    assert any(finding["what"].startswith("onnxruntime") for finding in findings)
    assert any("240 samples" in finding["what"] for finding in findings)


def fedwright(python: Path, home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command of the installed package, whatever its exit code."""
    return subprocess.run(
        [str(python.with_name("fedwright")), *words],
        env=bare_environment(home),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_doctor_names_what_is_wrong(device_python: Path, tmp_path: Path) -> None:
    data = f"npz:{tmp_path / 'nothing.npz'}"
    done = fedwright(device_python, tmp_path, "device", "doctor", "--data", data, "--broker", "mqtt://127.0.0.1:9")

    assert done.returncode == 1
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAIL")] == ["broker", "data:"]


def test_a_server_command_says_what_to_install(device_python: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('[method]\nname = "fedavg"\n')

    done = fedwright(device_python, tmp_path, "server", "run", str(config))

    assert done.returncode == 1
    assert 'pip install "fedwright[server]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_round_with_the_installed_agent(device_python: Path, shares: dict[str, Path], tmp_path: Path) -> None:
    config = {
        "run": {"name": "wheel", "rounds": 2, "folder": str(tmp_path / "runs")},
        "fleet": {"devices": len(DEVICES), "deadline_s": 120.0, "join_timeout_s": 60.0, "quorum_ratio": 1.0},
        "model": {"model": "cnn-small"},
        "train": {"epochs": 4, "batch": 16, "learning_rate": 0.05, "optimizer": {"momentum": 0.9}},
        "method": {"name": "fedavg"},
    }
    with Broker() as broker:
        agents = [start_agent(device_python, broker.url, device, shares[device], tmp_path) for device in DEVICES]
        try:
            link = connect(broker.url, client_id="server")
            outcome = execute(config_from_dict(config, where="test"), "", link=link)
            link.close()
            exits = [agent.wait(timeout=60) for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
                agent.wait()

    logs = [(tmp_path / f"{device}.log").read_text() for device in DEVICES]
    assert exits == [0, 0], logs
    assert sorted(outcome.devices) == DEVICES
    assert [metrics["updates"] for metrics in outcome.metrics] == [2, 2]
    assert outcome.metrics[-1]["accuracy_after"] > outcome.metrics[0]["accuracy_before"] + 0.3
    assert outcome.model is not None
    assert outcome.model.stat().st_size > 1000
    assert not any("Traceback" in log for log in logs)


def start_agent(python: Path, broker: str, device: str, data: Path, folder: Path) -> subprocess.Popen[bytes]:
    """`fedwright device run` of the installed wheel."""
    with (folder / f"{device}.log").open("wb") as log:
        return subprocess.Popen(
            [
                str(python.with_name("fedwright")),
                *("device", "run", "--once", "--threads", "1", "--broker", broker, "--device", device),
                *("--data", f"npz:{data}", "--state", str(folder / "state")),
            ],
            env=bare_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
