"""`fedwright device`: arguments to config, the doctor's output and exit code, a unit on paper."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.cli import device
from fedwright.cli.main import build_parser, main
from fedwright.device_runtime import start
from fedwright.device_runtime.config import AgentConfig
from fedwright.protocol.secure.graph import LEAST_DEVICES


def test_run_hands_the_arguments_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    got: list[Any] = []
    monkeypatch.setattr(start, "run_agent", got.append)

    words = "device run --broker mqtt://h:1 --data npz:d.npz --device pi --threads 2 --holdout 0.5 --evaluate-only"
    code = main([*words.split(), "--state", str(tmp_path), "--once", "--quiet"])

    assert code == 0
    assert got == [
        AgentConfig(
            broker="mqtt://h:1",
            device="pi",
            data="npz:d.npz",
            state=tmp_path,
            threads=2,
            holdout_ratio=0.5,
            trains=False,
            once=True,
        )
    ]


def test_defaults_are_those_of_the_config() -> None:
    args = build_parser("device").parse_args(["device", "run", "--broker", "b", "--data", "d", "--device", "x"])
    assert device.config_of(args) == AgentConfig(broker="b", device="x", data="d")


def test_the_default_device_is_a_lawful_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Raspberry Pi/7")
    assert device.default_device() == "Raspberry-Pi-7"


@pytest.mark.parametrize("words", [[], ["--threads", "-1"]], ids=["nothing given", "negative threads"])
def test_wrong_usage_exits_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["device", "run", *words])
    assert stop.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "install-service"])
def test_without_a_broker_the_error_says_what_to_give(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device", command, "--data", "npz:d.npz"]) == 1
    assert "--broker mqtt://host:1883 or --bundle DIR" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["run"], ["doctor"], ["install-service"]], ids=" ".join)
def test_help_shows_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["device", *words, "--help"])
    assert stop.value.code == 0
    _, _, examples = capsys.readouterr().out.partition("example")
    assert "fedwright device" in examples


def test_doctor_prints_one_line_each_and_fails_when_something_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((10, 3)), y=np.arange(10) % 2)
    good = ["device", "doctor", "--data", str(tmp_path / "d.npz"), "--state", str(tmp_path)]

    assert main(good) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line[:4] in ("ok  ", "WARN") for line in lines)
    assert any("8 samples of 3" in line for line in lines)

    assert main(["device", "doctor", "--data", str(tmp_path / "no.npz"), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    assert [f["level"] for f in findings if "does not exist" in f["what"]] == ["fail"]


def test_install_service_on_paper_and_in_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fedwright").write_text("")
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin/python"))
    words = ["device", "install-service", "--broker", "mqtt://h:1", "--data", "npz:/d.npz", "--device", "pi"]

    assert main([*words, "--dry-run"]) == 0
    assert "--state /var/lib/fedwright" in capsys.readouterr().out
    assert main([*words, "--user", "--unit-dir", str(tmp_path / "units"), "--state", str(tmp_path / "s")]) == 0
    assert "systemctl --user enable --now fedwright-default-pi.service" in capsys.readouterr().out
    assert "npz:/d.npz" in (tmp_path / "units/fedwright-default-pi.service").read_text()


def test_doctor_works_where_nothing_is_installed() -> None:
    root = Path(device.__file__).parents[2]
    program = f"import sys; sys.path.insert(0, {str(root)!r}); from fedwright.cli.main import main; sys.exit(main())"
    words = ["device", "doctor", "--broker", "mqtt://127.0.0.1:1", "--data", "npz:d.npz"]

    done = subprocess.run([sys.executable, "-I", "-S", "-c", program, *words], capture_output=True, text=True)

    assert done.returncode == 1, done.stderr
    assert 'FAIL  onnxruntime is not installed -> pip install "fedwright[device]"' in done.stdout
    assert "FAIL  broker not tried, " in done.stdout
    assert "FAIL  data not tried, numpy is missing" in done.stdout


def test_a_bundle_of_another_device_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "enroll", "pi-01", "--broker", "mqtts://h:8883", "--trust", str(tmp_path)]) == 0
    bundle = str(tmp_path / "devices" / "pi-01")
    words = ["device", "run", "--data", "d", "--broker", "mqtts://h:8883", "--fleet", "f", "--bundle", bundle]

    assert main([*words, "--device", "pi-02"]) == 1

    assert f"--device is pi-02 but {bundle} is the bundle of pi-01" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--provider", "cud"), ("--backend", "portabel")])
@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_misspelt_choice_is_found_at_the_start(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["device", command, "--data", "npz:d.npz", "--broker", "mqtt://h:1", option, value]) == 1

    assert f"{option} is {value!r}; choose one of" in capsys.readouterr().err


def test_help_says_how_many_devices_hidden_counts_need(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["device", "run", "--help"])

    assert f"sums over {LEAST_DEVICES} devices or more" in " ".join(capsys.readouterr().out.split())
