"""The demo as a user runs it: its result, its model, its mistakes, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
import psutil
import pytest

from fedwright.cli.main import main

DEMO = [sys.executable, "-m", "fedwright", "demo"]
KEYS = {
    "id",
    "profile",
    "samples",
    "accuracy_before",
    "accuracy_after",
    "round_s",
    "cpu_s",
    "peak_rss_bytes",
    "bytes_up",
    "bytes_down",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A small demo that has run to its end: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    command = [*DEMO, "--devices", "4", "--rounds", "5", "--json", "result.json", "--keep", "kept"]
    return folder, subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.broker
@pytest.mark.slow
def test_accuracy_rises_on_every_device(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, process = finished
    assert process.returncode == 0, process.stderr
    result = json.loads((folder / "result.json").read_text())

    assert result.keys() >= {"devices", "rounds", "method", "model_path"}
    assert (result["rounds"], result["method"], len(result["devices"])) == (5, "hasa", 4)
    for device in result["devices"]:
        assert device.keys() >= KEYS
        assert device["accuracy_after"] > device["accuracy_before"], device
        assert device["exit_code"] == 0, device
        assert 0 < device["width"] <= {"raspberry-pi-4": 0.65, "raspberry-pi-5": 1.0}[device["profile"]]
        assert min(device[key] for key in ("cpu_s", "round_s", "peak_rss_bytes", "bytes_up", "bytes_down")) > 0


@pytest.mark.broker
@pytest.mark.slow
def test_limits_are_stated_and_held(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    for device in json.loads((folder / "result.json").read_text())["devices"]:
        limits = device["limits"]
        assert 0 < limits["measured_share"] < limits["cpu_share"] * 1.3 + 0.02, device
        assert device["peak_rss_bytes"] < limits["memory_bytes"]


@pytest.mark.broker
@pytest.mark.slow
def test_the_exported_model_runs_on_a_stock_onnxruntime(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, process = finished
    model = Path(json.loads((folder / "result.json").read_text())["model_path"])
    session = ort.InferenceSession(model)
    (batch,) = session.get_inputs()
    with np.load(folder / "kept" / "data" / "pi4-1.npz") as data:
        x, y = data["x_holdout"], data["y_holdout"]

    (logits,) = session.run(["logits"], {batch.name: x})

    assert str(model) in process.stdout
    assert (logits.argmax(axis=1) == y).mean() > 0.5


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
def test_an_interrupt_stops_everything(tmp_path: Path, sign: signal.Signals) -> None:
    command = [*DEMO, "--devices", "2", "--rounds", "1000", "--keep", str(tmp_path / "kept")]
    # A shell that starts the tests in the background has them ignore Ctrl-C, which children inherit.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=heed
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 1/"):
                break
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sign)
        said = process.stderr.read()

    assert process.returncode == 130
    assert said.endswith("fedwright: stopped\n")
    assert "Traceback" not in said
    assert len(children) >= 3
    assert psutil.wait_procs(children, timeout=5)[1] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "0"], "--devices is 0 but must be at least 1"),
        (["--rounds", "0"], "--rounds is 0 but must be at least 1"),
        (["--method", "fedavgg"], "there is no method 'fedavgg'; did you mean 'fedavg'?"),
        (["--keep", os.sep], f"folder {os.sep} is not empty; name a new one"),
    ],
    ids=["devices", "rounds", "method", "folder"],
)
def test_a_mistake_is_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"fedwright: {message}")
    assert said.count("\n") == 1


def test_a_result_that_could_not_be_written_is_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path, tmp_path / "file" / "result.json"):
        with pytest.raises(SystemExit) as ended:
            main(["demo", "--json", str(target)])
        assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "is a folder; name a file" in said
    assert f"the folder {tmp_path / 'file'} cannot be made" in said
