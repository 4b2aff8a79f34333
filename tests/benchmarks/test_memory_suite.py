"""What `bench memory` makes of measured rows, and the torch forms that it measures beside ours."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwright.benchmarks.processes import training_step
from fedwright.benchmarks.suites import memory
from fedwright.cli.main import main
from fedwright.protocol import tensors
from fedwright.server_runtime import zoo
from fedwright.server_runtime.spec import ModelSpec


def row(form: str, part: int, cpu_ms: float, peak_mb: float) -> dict[str, Any]:
    return {"form": form, "part": part, "CPU ms": cpu_ms, "peak MB": peak_mb}


def test_the_least_memory_counts_that_is_not_too_slow() -> None:
    rows = [
        row(memory.FASTEST, 32, 100.0, 400.0),
        row(memory.PARTS, 8, 130.0, 250.0),
        row(memory.LEANEST, 4, 140.0, 200.0),
        row(memory.EAGER, 32, 90.0, 1000.0),
        row(memory.CHECKPOINTS, 32, 120.0, 100.0),
    ]

    (check,) = memory.checks_of("resnet18", rows)

    assert (check["value"], check["holds"]) == (0.25, True)


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "memory", "--models", "resnet19"]) == 1
    assert "unknown model 'resnet19'" in capsys.readouterr().err


@pytest.mark.parametrize("checkpoints", [False, True])
def test_torch_in_parts_takes_the_same_step(tmp_path: Path, checkpoints: bool) -> None:
    spec = ModelSpec("vit-tiny", (3, 32, 32), 10)
    rng = np.random.default_rng(0)
    batch: dict[str, np.ndarray[Any, Any]] = {
        "x": rng.standard_normal((4, 3, 32, 32)).astype(np.float32),
        "y": rng.integers(0, 10, 4),
    }
    (tmp_path / "batch.safetensors").write_bytes(tensors.save(batch))
    task = {"model": spec.model, "input_shape": spec.input_shape, "classes": spec.classes, "momentum": 0.9}
    names = [name for name, _ in zoo.create(spec, seed=0).named_parameters()]
    (tmp_path / "task.json").write_text(json.dumps(task | {"trainable": names, "frozen": []}))
    threads = torch.get_num_threads()

    whole = training_step.torch_step(tmp_path, threads)
    lean = training_step.torch_lean_step(tmp_path, part=4, checkpoints=checkpoints)

    assert [lean(), lean(), lean()] == pytest.approx([whole(), whole(), whole()], rel=1e-4)
    assert len(training_step._blocks(zoo.create(spec, seed=0))) >= 4
