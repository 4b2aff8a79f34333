"""Tasks with public rows: a device fits its logits to others' and says its own; rows that do not fit are refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime.run_task import Result, Tools, run_task
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.task_inputs import Inputs
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.artifact import PUBLIC_LOGITS, Artifact
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import Recipe, Returns, Task
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure
from helpers.fleet import make_data
from helpers.tiny_artifact import CLASSES, FEATURES

SPEC = ModelSpec("mlp", (FEATURES,), CLASSES, (("fc1", 8), ("fc2", 8)))
ROWS = 20


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    """A digest task with its blobs on disk."""
    module = zoo.create(SPEC, seed=1)
    built = build(Structure(SPEC, Objective(cross_entropy=0.0, match_logits=1.0)), module)
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
    blobs = {
        "artifact": artifacts.pack(built),
        "weights": tensors.save(initial_weights(module)),
        "public": tensors.save({"x": x}),
        "sides": tensors.save({"target_logits": np.full((ROWS, CLASSES), 0.5, np.float32)}),
    }
    for name, blob in blobs.items():
        (tmp_path / name).write_bytes(blob)

    class Bench:
        inputs = Inputs(**{name: tmp_path / name for name in blobs})
        folder = tmp_path

        def run_task(self, *, epochs: int = 60, inputs: Inputs | None = None) -> Result:
            recipe = Recipe(batch=10, learning_rate=0.05, seed=3, epochs=epochs, public=True)
            returns = Returns(logits=ROWS, evaluate=False)
            task = Task("t", "b", "r", 1, make_ref(blobs["artifact"]), make_ref(b"w"), recipe, returns, 60.0)

            def make(artifact: Artifact, sides: Any, frozen: Any) -> PortableTrainer:
                return PortableTrainer(artifact, sides=sides, frozen=frozen)

            tools = Tools(
                make,
                lambda artifact, recipe: None,
                Checkpoint(tmp_path / "checkpoint", every_s=60),
                PersonalLayers(tmp_path),
            )
            return run_task(task, inputs or self.inputs, make_data("a"), tools=tools, should_stop=lambda: False)

    return Bench()


def away(result: Result) -> float:
    return float(np.abs(result.tensors[PUBLIC_LOGITS] - 0.5).mean())


def test_a_device_comes_nearer_to_the_common_logits_on_public_rows(bench: Any) -> None:
    before, after = bench.run_task(epochs=0), bench.run_task()
    assert before.tensors[PUBLIC_LOGITS].shape == (ROWS, CLASSES)
    assert after.stats.samples == ROWS
    assert away(after) < 0.5 * away(before)


@pytest.mark.parametrize(
    ("blob", "content", "says"),
    [
        ("public", {"x": np.zeros((ROWS, FEATURES + 1), np.float32)}, "public rows have the shape"),
        ("public", {"z": np.zeros((ROWS, FEATURES), np.float32)}, "public rows have the shape None"),
        ("sides", {"target_logits": np.zeros((3, CLASSES), np.float32)}, "another number of rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused(bench: Any, blob: str, content: dict[str, NDArray[Any]], says: str) -> None:
    (bench.folder / blob).write_bytes(tensors.save(content))
    with pytest.raises(BadBlob, match=says):
        bench.run_task()


def test_a_task_that_speaks_of_rows_it_does_not_bring_is_refused(bench: Any) -> None:
    with pytest.raises(BadBlob, match="names no blob"):
        bench.run_task(inputs=replace(bench.inputs, public=None))
