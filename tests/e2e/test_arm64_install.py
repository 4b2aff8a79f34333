"""A board's first hour on ARM64: README's device commands, from the wheel to two rounds over a broker."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedwright.device_runtime.profiler.pack import load_probes, pack_probes
from fedwright.protocol.link import connect
from fedwright.server_runtime.config import FleetSection, config_from_dict
from fedwright.server_runtime.run import execute
from fedwright.server_runtime.transport.own_broker import OwnBroker, own_broker
from helpers.arm64_root import arm64_root
from helpers.tools import run

pytestmark = [pytest.mark.arm64, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

PI_4 = "cortex-a72"
TIMEOUT_S = 600
# The emulated processor is some twenty times slower than a board, so the profile is measured on a few probes.
PROBES = ("linear", "linear small", "conv 5x5 one by one", "max pool unpadded", "series")


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`fedwright` as pip installs it from the wheel into an environment on the board."""
    python = arm64_root(wheel).make_environment(tmp_path_factory.mktemp("board") / "fedwright", cpu=PI_4)
    # pip runs under the interpreter that it installs for, which has none of its own.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-input"]
    run([*pip, f"fedwright[device] @ {wheel.as_uri()}"], timeout_s=TIMEOUT_S)
    return python.with_name("fedwright")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The board's home, with its data."""
    folder = tmp_path_factory.mktemp("home")
    digits = load_digits()
    np.savez(folder / "data.npz", x=(digits.images[:80, None] / 16).astype(np.float32), y=digits.target[:80])
    return folder


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnBroker]:
    """The host's own broker, which runs beside the emulation."""
    folder = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        with own_broker(FleetSection(), folder / "broker") as own:
            yield own


def environment_of(folder: Path) -> dict[str, str]:
    """A login on the board."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}


def board_line(own: OwnBroker, command: Path, what: str = "device run") -> str:
    """The line that the host prints for the board's `fedwright`, or another command with its broker and password."""
    return own.join.replace(" fedwright device run ", f" {command} {what} ")


def on_board(line: str, folder: Path) -> str:
    """What a line typed on the board prints."""
    return run(["bash", "-c", f"cd {folder} && {line}"], env=environment_of(folder), timeout_s=TIMEOUT_S)


def test_doctor_finds_nothing_wrong(command: Path, folder: Path, broker: OwnBroker) -> None:
    said = on_board(board_line(broker, command, "device doctor") + " --json", folder)

    findings = json.loads(said)
    assert [finding for finding in findings if finding["level"] != "ok"] == []
    whats = " / ".join(finding["what"] for finding in findings)
    assert "loads on this processor" in whats
    assert "aarch64" in whats
    assert " answers" in whats


def test_profile_measures_the_board(command: Path, folder: Path, broker: OwnBroker) -> None:
    [probes] = command.parents[1].glob("lib/*/site-packages/fedwright/device_runtime/profiler/probes.bin")
    some = [probe for probe in load_probes() if probe.name in PROBES]
    assert len(some) == len(PROBES)
    probes.write_bytes(pack_probes(some))

    profile = json.loads(on_board(board_line(broker, command, "device profile") + " --json", folder))

    assert (folder / ".fedwright" / "profile.json").exists()
    assert {"connect_s", "round_trip_s", "bytes_per_s"} <= set(profile["link"])
    assert {"Conv", "Gemm", "MaxPool"} <= set(profile["kinds"])


def test_two_rounds_with_the_printed_line(command: Path, folder: Path, broker: OwnBroker, tmp_path: Path) -> None:
    config = {
        "run": {"name": "board", "rounds": 2, "folder": str(tmp_path / "runs")},
        "fleet": {"devices": 1, "deadline_s": TIMEOUT_S, "join_timeout_s": TIMEOUT_S},
        "model": {"model": "mlp"},
        "train": {"batch": 16},
        "method": {"name": "fedavg"},
    }
    link = connect(broker.url, client_id="server", login=broker.login)
    with (tmp_path / "board.log").open("wb") as log:
        board = subprocess.Popen(
            ["bash", "-c", board_line(broker, command) + " --device pi-01 --once"],
            cwd=folder,
            env=environment_of(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        outcome = execute(config_from_dict(config, where="test"), "", link=link)
        code = board.wait(timeout=120)
    finally:
        board.kill()
        board.wait()
        link.close()

    said = (tmp_path / "board.log").read_text()
    assert code == 0, said
    assert [metrics["updates"] for metrics in outcome.metrics] == [1, 1]
    assert list(outcome.devices) == ["pi-01"]
    assert "waiting for a task" in said
    assert "Traceback" not in said


def test_a_service_is_shown_before_it_is_installed(command: Path, folder: Path) -> None:
    line = f"{command} device install-service --dry-run --broker mqtt://host:1883 --data npz:/srv/data.npz"

    unit = on_board(line, folder)

    assert f"ExecStart={command} device run --broker mqtt://host:1883 " in unit
    assert "WantedBy=multi-user.target" in unit
