"""The real tools read back what they were told: TensorBoard, MLflow and Weights & Biases on this disk, and JSON."""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.track.base import TOOLS, check_tools
from helpers.tools import run

LEDGER = "FedAvg: every device trains the whole model"
# In a process of its own: these libraries leave threads behind.
TELL = """
import sys
from pathlib import Path
from fedwright.server_runtime.track.base import Described, open_tracker
name, folder, step, model = sys.argv[1:]
settings = {"run.name": "pets", "train.batch": 16, "long": "x" * 2000}
ledger = "FedAvg: every device trains the whole model"
tracker = open_tracker(name, Described("pets", "a" * 32, Path(folder), "trials", "[run]\\n", settings, ledger))
tracker.numbers(int(step), {"loss": 0.5 / int(step), "test/mean": 0.25 * int(step)})
tracker.file(Path(model))
tracker.close()
"""
ASK_MLFLOW = """
import json, os, sys
from pathlib import Path
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=Path(sys.argv[1]).as_uri())
runs = client.search_runs([client.get_experiment_by_name("trials").experiment_id])
run = runs[0]
history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
files = sorted(file.path for file in client.list_artifacts(run.info.run_id))
curves = {name: sorted((one.step, one.value) for one in points) for name, points in history.items()}
print(json.dumps({"runs": len(runs), "batch": run.data.params["train.batch"], "files": files, "curves": curves}))
"""
Curves = dict[str, list[tuple[int, float]]]


def curves_of_tensorboard(folder: Path) -> Curves:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert b"FedAvg" in events.Tensors("ledger")[0].tensor_proto.string_val[0]
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def curves_of_mlflow(folder: Path) -> Curves:
    found: dict[str, Any] = json.loads(run([sys.executable, "-W", "error", "-c", ASK_MLFLOW, str(folder / "mlflow")]))
    # A run that was resumed is one run.
    assert found["runs"] == 1
    assert found["batch"] == "16"
    assert found["files"] == ["config.toml", "ledger.txt", "model.onnx"]
    return {name: [(step, value) for step, value in points] for name, points in found["curves"].items()}


def curves_of_wandb(folder: Path) -> Curves:
    found: Curves = {}
    runs = sorted((folder / "wandb").glob("offline-run-*"))
    # Two of one second are told apart by a number behind the id.
    assert len(runs) == 2
    assert all("a" * 32 in place.name for place in runs)
    for place in runs:
        [file] = place.glob("*.wandb")
        for record in records_of(file):
            items = {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            for name in set(items) - {"round"} - {key for key in items if key.startswith("_")}:
                found.setdefault(name, []).append((items["round"], items[name]))
    assert all((place / "files" / "model.onnx").read_bytes() == b"model" for place in runs)
    return found


def records_of(file: Path) -> list[Any]:
    """Records of their log: behind seven bytes of a head, each with a checksum, its length and its kind (1: whole)."""
    from wandb.proto import wandb_internal_pb2

    data, at, found = file.read_bytes(), 7, []
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<xxxxHB", data, at)
        assert kind == 1
        record = vars(wandb_internal_pb2)["Record"]()
        record.ParseFromString(data[at + 7 : at + 7 + length])
        found.append(record)
        at += 7 + length
    return found


def curves_of_jsonl(folder: Path) -> Curves:
    found: Curves = {}
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for name in entry.keys() - {"round", "time"}:
            found.setdefault(name, []).append((entry["round"], entry[name]))
    assert (folder / "ledger.txt").read_text() == LEDGER
    assert (folder / "model.onnx").read_bytes() == b"model"
    return found


READERS: dict[str, Callable[[Path], Curves]] = {
    "tensorboard": curves_of_tensorboard,
    "mlflow": curves_of_mlflow,
    "wandb": curves_of_wandb,
    "jsonl": curves_of_jsonl,
}


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_reads_back_what_it_was_told_also_after_a_resume(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    folder = tmp_path / "track"

    for step in (1, 2):
        run([sys.executable, "-W", "error", "-c", TELL, name, str(folder), str(step), str(model)])

    assert READERS[name](folder) == {"loss": [(1, 0.5), (2, 0.25)], "test/mean": [(1, 0.25), (2, 0.5)]}


def test_a_tool_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    check_tools(["jsonl"])
    with pytest.raises(ConfigError, match=r'names wandb, .* pip install "fedwright\[wandb\]"'):
        check_tools(["jsonl", "wandb"])


def test_an_unknown_tool_is_named() -> None:
    with pytest.raises(ConfigError, match="no tool 'neptune'"):
        check_tools(["neptune"])
