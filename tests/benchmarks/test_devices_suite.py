"""The suite devices: the machine's own profile, and what emulated boards used beside what was predicted."""

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fedwright.benchmarks import devices
from fedwright.cli.main import main
from fedwright.device_runtime.profiler import profile as profiles
from fedwright.device_runtime.profiler.pack import load_probes


@pytest.fixture
def profile(monkeypatch, capsysbinary):
    """This machine as the command finds it, from two probes."""
    few = [probe for probe in load_probes() if probe.name in ("linear small", "conv 5x5 narrow")]
    monkeypatch.setattr(profiles, "load_probes", lambda: few)

    def run(command, *, capture_output):
        assert command[1:3] == ["-m", "fedwright"]
        status = main(command[3:])
        return SimpleNamespace(returncode=status, stdout=capsysbinary.readouterr().out, stderr=b"")

    monkeypatch.setattr(subprocess, "run", run)
    found = devices._profile()
    monkeypatch.undo()
    # This process holds far more than an agent does.
    return replace(found, base_bytes=50_000_000)


def test_every_device_is_measured_beside_what_was_predicted(profile, monkeypatch):
    monkeypatch.setattr(devices, "QUICK", ("heterofl",))
    monkeypatch.setattr(devices, "_profile", lambda: profile)

    found = devices.run(SimpleNamespace(quick=True))

    rows = found["tables"]["heterofl: every device, per round"]
    assert len(rows) == 8
    for row in rows:
        assert row["s per round"] > 0
        assert row["predicted CPU s"] > 0
        assert 0.5 < row["predicted MB"] / row["peak MB"] < 2
        assert row["kB per round"] > 1
    (summary,) = found["tables"]["mean device beside FedConv's Table II (MNIST, on the boards' GPUs)"]
    assert summary["paper s per round"] == 6.96
    assert "RLIMIT_DATA" in found["limits"]
    assert [entry["name"] for entry in found["checks"]] == ["CPU seconds, measured / predicted, median"]
