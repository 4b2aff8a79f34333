"""`fedwright server` over a real broker with agents in processes of their own."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from fedwright.cli.main import main
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.support.files import lock_folder
from helpers.data_files import save_points
from helpers.served import served_config, start_agents

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which `server run` has run to its end."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch, Broker() as broker, EmulatedFleet(folder / "logs") as fleet:
        patch.chdir(folder)
        (folder / "run.toml").write_text(served_config(broker.url))
        for seed, device in enumerate(("a", "b")):
            save_points(folder / f"{device}.npz", seed=seed)
        start_agents(fleet, broker.url, folder, {"a": "npz:a.npz", "b": "npz:b.npz"}, once=True)
        assert main(["server", "run", "run.toml", "--json", "result.json"]) == 0
        assert {device: ended.exit_code for device, ended in fleet.wait(120).items()} == {"a": 0, "b": 0}
        yield folder


def test_run_writes_its_result(done: Path) -> None:
    result = json.loads((done / "result.json").read_text())

    assert (result["method"], result["rounds_done"], result["complete"]) == ("fedavg", 2, True)
    assert [device["id"] for device in result["devices"]] == ["a", "b"]
    assert len(result["metrics"]) == 2
    assert Path(result["model_path"]).exists()


def test_status_finds_the_newest_run(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "status"]) == 0
    assert "a run over a broker, fedavg, 2 of 2 rounds, complete" in capsys.readouterr().out
    assert main(["server", "status", "runs/night", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "night"


def test_export_writes_a_model_that_runs(done: Path) -> None:
    assert main(["server", "export", "--device", "a", "a.onnx"]) == 0
    session = ort.InferenceSession(done / "a.onnx")
    (batch,) = session.get_inputs()

    (logits,) = session.run(["logits"], {batch.name: np.zeros((3, 4), np.float32)})

    assert logits.shape == (3, 2)


def test_a_complete_run_resumes_to_the_same_result(done: Path) -> None:
    before = json.loads((done / "result.json").read_text())

    assert main(["server", "resume", "runs/night", "--json", "again.json"]) == 0

    after = json.loads((done / "again.json").read_text())
    assert after["devices"] == before["devices"]
    assert after["metrics"] == before["metrics"]


def test_a_second_server_may_not_work_on_the_same_run(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = lock_folder(done / "runs" / "night")
    assert lock is not None
    with lock:
        assert main(["server", "resume", "runs/night", "--rounds", "3"]) == 1
    assert "another server is at work on the run in" in capsys.readouterr().err


def test_another_config_may_not_take_over_a_run(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (done / "other.toml").write_text((done / "run.toml").read_text().replace('model = "mlp"', 'model = "cnn-small"'))

    assert main(["server", "run", "other.toml"]) == 1
    assert "belongs to a run that was started with another config" in capsys.readouterr().err


def test_a_folder_without_a_run_is_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "status", str(tmp_path)]) == 1
    assert "holds no run; give the folder of one" in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(served_config("mqtt://127.0.0.1:1") + '[server]\ndevice = "cpu"\n')
    path.write_text(path.read_text().replace('name = "night"', f'name = "night"\nfolder = "{tmp_path}"'))

    assert main(["server", "run", str(path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("fedwright: no broker at mqtt://127.0.0.1:1")
