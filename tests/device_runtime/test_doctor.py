"""The doctor: every illness it knows, made by hand."""

import signal
import subprocess
import sys
import types
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from fedwright.device_runtime import doctor, facts
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.doctor import Finding, _broker, is_served
from fedwright.protocol.support.files import lock_folder


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentConfig:
    """A config whose data is fine, on a machine whose runtime import is not really run."""
    np.savez(tmp_path / "d.npz", x=np.zeros((10, 3)), y=np.arange(10) % 2)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: types.SimpleNamespace(returncode=0, stderr=""))
    return AgentConfig(broker="", device="pi", data=str(tmp_path / "d.npz"), state=tmp_path / "state")


def find(findings: list[Finding], word: str) -> Finding:
    return next(finding for finding in findings if word in finding.what)


def versions(monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None]) -> None:
    real = metadata.version

    def version(name: str) -> str:
        found = changes[name] if name in changes else real(name)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)


def test_a_healthy_device(healthy: AgentConfig) -> None:
    findings = doctor.diagnose(healthy)
    assert all(finding.level != "fail" for finding in findings)
    assert find(findings, "8 samples of 3, 2 held out, 2 classes").level == "ok"
    assert find(findings, "broker not tried").level == "warn"
    assert not healthy.state.exists()


@pytest.mark.parametrize(
    ("changes", "machine", "word", "level"),
    [
        pytest.param({"safetensors": None}, "x86_64", "safetensors is not installed", "fail", id="package missing"),
        pytest.param(
            {"backports.zstd": None, "zstandard": None},
            "x86_64",
            "backports.zstd is not installed",
            "fail",
            id="no compression",
            marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="the standard library has it"),
        ),
        pytest.param({"backports.zstd": None, "zstandard": "0.25.0"}, "x86_64", "zstandard 0.25.0", "ok", id="older"),
        pytest.param({"onnxruntime": None}, "x86_64", "onnxruntime is not installed", "fail", id="no runtime"),
        pytest.param({"onnxruntime": "1.16.3"}, "x86_64", "too old", "fail", id="old runtime"),
        pytest.param({"onnxruntime": "1.21.0"}, "aarch64", "illegal instruction", "warn", id="1.21.0 on ARM"),
        pytest.param({"onnxruntime": "1.21.0"}, "x86_64", "onnxruntime 1.21.0 loads", "ok", id="1.21.0 elsewhere"),
        pytest.param({"onnxruntime-gpu": "1.22.0"}, "x86_64", "overwrite each other", "warn", id="two runtimes"),
    ],
)
def test_packages(
    healthy: AgentConfig,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str | None],
    machine: str,
    word: str,
    level: str,
) -> None:
    versions(monkeypatch, changes)
    monkeypatch.setattr("platform.machine", lambda: machine)
    found = find(doctor.diagnose(healthy), word)
    assert found.level == level
    assert found.remedy or level == "ok"


def test_a_runtime_that_dies_is_named_with_its_signal(healthy: AgentConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = types.SimpleNamespace(returncode=-signal.SIGILL, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: dead)
    assert find(doctor.diagnose(healthy), "SIGILL").level == "fail"


def test_a_runtime_that_cannot_be_imported_says_why(healthy: AgentConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = types.SimpleNamespace(returncode=1, stderr="Traceback\nImportError: libfoo.so")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: broken)
    assert find(doctor.diagnose(healthy), "libfoo.so").level == "fail"


@pytest.mark.parametrize(
    ("free", "level"), [(50e6, "fail"), (200e6, "warn"), (1e9, "ok")], ids=["none", "little", "enough"]
)
def test_memory(healthy: AgentConfig, monkeypatch: pytest.MonkeyPatch, free: float, level: str) -> None:
    monkeypatch.setattr(facts, "free_bytes", lambda _: int(free))
    assert find(doctor.diagnose(healthy), "memory").level == level


@pytest.mark.parametrize(
    ("free", "level"), [(10e6, "fail"), (100e6, "warn"), (10e9, "ok")], ids=["none", "little", "enough"]
)
def test_disk(healthy: AgentConfig, monkeypatch: pytest.MonkeyPatch, free: float, level: str) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: types.SimpleNamespace(free=free))
    assert find(doctor.diagnose(healthy), "state folder").level == level


def test_a_state_folder_that_cannot_be_written(healthy: AgentConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert find(doctor.diagnose(healthy), "not writable").level == "fail"


def test_sensors_are_told_when_they_matter(healthy: AgentConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    ill = facts.Health(
        temperature_c=85.0, throttled=("under-voltage",), battery_ratio=0.1, on_battery=True, power_mode="MAXN"
    )
    monkeypatch.setattr(facts, "health", lambda _: ill)
    findings = doctor.diagnose(healthy)
    assert [find(findings, word).level for word in ("85 °C", "under-voltage", "battery 10%", "MAXN")] == [
        "warn",
        "warn",
        "warn",
        "ok",
    ]


def test_broker_and_data_that_are_not_there(tmp_path: Path) -> None:
    config = AgentConfig(broker="mqtt://127.0.0.1:1", device="pi", data=str(tmp_path / "no.npz"), state=tmp_path)
    findings = doctor.diagnose(config)
    assert find(findings, "broker mqtt://127.0.0.1:1").level == "fail"
    assert find(findings, "does not exist").level == "fail"


def test_a_provider_that_the_runtime_lacks_is_found(healthy: AgentConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    lacking = find(doctor.diagnose(replace(healthy, provider="cuda")), "CUDAExecutionProvider")
    assert (lacking.level, lacking.remedy) == ("fail", "give another --provider")
    assert find(doctor.diagnose(replace(healthy, provider="auto")), "provider auto").level == "ok"


def test_the_connection_of_an_agent_that_runs_here_is_left_alone(tmp_path: Path) -> None:
    config = AgentConfig(broker="mqtts://nowhere.invalid", device="pi", data="", state=tmp_path, bundle=tmp_path)
    folder = tmp_path / config.fleet / config.device
    folder.mkdir(parents=True)

    assert not is_served(config)
    lock = lock_folder(folder)
    assert lock is not None
    with lock:
        assert is_served(config)
        assert _broker(config).level == "ok"
    assert not is_served(config)
