"""The suite devices: the machine's own profile, and what emulated boards used beside what was predicted."""

import json
import subprocess
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedwright.benchmarks.suites import devices
from fedwright.cli.main import main
from fedwright.device_runtime.profiler import profile as profiles
from fedwright.device_runtime.profiler.pack import load_probes
from fedwright.protocol.predictor import Profile


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[str]) -> Profile:
    """This machine as the command finds it, from two probes."""
    few = [probe for probe in load_probes() if probe.name in ("linear small", "conv 5x5 narrow")]
    monkeypatch.setattr(profiles, "load_probes", lambda: few)

    def run(command: list[str], *, capture_output: bool) -> SimpleNamespace:
        assert command[1:3] == ["-m", "fedwright"]
        status = main(command[3:])
        return SimpleNamespace(returncode=status, stdout=capsysbinary.readouterr().out, stderr=b"")

    monkeypatch.setattr(subprocess, "run", run)
    found = devices._profile()
    monkeypatch.undo()
    # This process holds far more than one with the runtime alone, which has about so much.
    return replace(found, base_bytes=65_000_000)


def test_every_device_is_measured_beside_what_was_predicted(
    profile: Profile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "_profile", lambda: profile)
    kept = SimpleNamespace(TemporaryDirectory=lambda **_: nullcontext(str(tmp_path)))
    monkeypatch.setattr(devices, "tempfile", kept)

    found = devices.run(Namespace(quick=True, methods=["heterofl"]))

    rows = found["tables"]["heterofl: every device, per round"]
    assert len(rows) == 8
    for row in rows:
        assert row["s per round"] > 0
        assert row["predicted training CPU s"] > 0
        assert 0 < row["training CPU s"] < row["CPU s"]
        assert 0.5 < row["predicted MB"] / row["peak MB"] < 2
        assert row["kB per round"] > 1
    (summary,) = found["tables"]["mean device beside FedConv's Table II (MNIST, on the boards' GPUs)"]
    assert summary["paper s per round"] == 6.96
    assert "RLIMIT_DATA" in found["limits"]
    assert [entry["name"] for entry in found["checks"]] == ["training CPU seconds, measured / predicted, median"]

    rounds = found["tables"]["heterofl: every device and round"]
    assert [row["round"] for row in rounds] == sorted([1, 2, 3] * 8)
    first, last = rounds[:8], rounds[-8:]
    assert all(row["predicted training s"] is None for row in first)
    assert all(0.1 < row["training s"] / row["predicted training s"] < 10 for row in last)
    assert all(row["up kB"] > 1 and row["down kB"] > 1 for row in rounds)

    (store,) = tmp_path.rglob("rounds.sqlite")
    assert main(["bench", "devices", "--run", str(store.parent), "--json", str(tmp_path / "run.json")]) == 0
    again = json.loads((tmp_path / "run.json").read_text())
    assert again["tables"]["every device and round"] == rounds


def test_a_folder_without_a_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "devices", "--run", str(tmp_path)]) != 0
    assert f"{tmp_path} is not the folder of a run" in capsys.readouterr().err
