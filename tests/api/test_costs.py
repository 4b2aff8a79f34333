"""What a step takes on a board: by its data sheet, or by what it measured of itself."""

from pathlib import Path

import pytest

import fedwright as fw
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile


@pytest.fixture(scope="module")
def graph() -> fw.TrainingGraph:
    return fw.training_graph("cnn-small", input_shape=(1, 8, 8), classes=10)


def test_a_slower_board_takes_longer_and_a_larger_batch_too(graph: fw.TrainingGraph) -> None:
    board, laptop = (fw.predict(graph, device=name) for name in ("raspberry-pi-4", "laptop"))
    larger = fw.predict(graph, device="raspberry-pi-4", batch=64)

    assert board.low_s < board.step_s < board.high_s
    assert board.step_s > laptop.step_s
    assert larger.step_s > board.step_s
    assert larger.memory_mb > board.memory_mb
    assert str(board).startswith("raspberry-pi-4, batch 32: ")
    assert board.basis == "data sheet"


def test_a_measured_profile_is_read_from_its_file(graph: fw.TrainingGraph, tmp_path: Path) -> None:
    calls = [1e-3 if name == "calls" else 0.0 for name in FEATURES]
    kinds = dict.fromkeys(graph.artifact.manifest.work, calls)
    file = tmp_path / "profile.json"
    file.write_bytes(Profile("board", "onnxruntime", 1, kinds=kinds).to_json())
    # A millisecond a call, so as many milliseconds as the graph has calls.
    found = fw.predict(graph, device=str(file))
    number = round(found.step_s * 1e3)

    assert found.basis == "measured"
    assert found.step_s == pytest.approx(number * 1e-3)
    assert number > len(kinds)


@pytest.mark.parametrize(
    ("device", "batch", "sentence"),
    [
        ("raspbery-pi-4", 8, "raspberry-pi-4"),
        ("nothing.json", 8, r"the profile nothing\.json cannot be read"),
        ("laptop", 0, "batch is 0"),
    ],
)
def test_mistakes_are_named(graph: fw.TrainingGraph, device: str, batch: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fw.predict(graph, device=device, batch=batch)
