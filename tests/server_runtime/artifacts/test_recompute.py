"""Activations made again: the same numbers, less memory, and a session that does not merge them away."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedwright.device_runtime.train import session as sessions
from fedwright.device_runtime.train.base import Tensors
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import AGAIN, Artifact
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

BATCH = 4


def structure_of(model: str) -> Structure:
    entry = zoo.MODELS[model]
    return Structure(ModelSpec(model, entry.example_shape, entry.example_classes), optimizer=Optimizer(momentum=0.9))


def weights_after(artifact: Artifact, structure: Structure, steps: int) -> Tensors:
    rng, spec = np.random.default_rng(0), structure.spec
    batch: Tensors = {
        "x": rng.standard_normal((BATCH, *spec.input_shape)).astype(np.float32),
        "y": rng.integers(0, spec.classes, BATCH),
    }
    trainer = PortableTrainer(artifact)
    trainer.load(initial_weights(zoo.create(spec, seed=0)))
    for _ in range(steps):
        trainer.step(batch, learning_rate=0.05, seed=0)
    return trainer.weights()


@pytest.mark.parametrize("model", ["resnet8", "vit-tiny"])
def test_training_ends_with_the_same_bits_in_less_memory(model: str) -> None:
    structure, module = structure_of(model), zoo.create(structure_of(model).spec, seed=0)
    kept, lean = build(structure, module), build(replace(structure, recompute=True), module)

    expected, found = weights_after(kept, structure, 3), weights_after(lean, structure, 3)

    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert lean.manifest.sample_bytes < 0.95 * kept.manifest.sample_bytes


def test_a_session_runs_what_is_made_again(tmp_path: Path) -> None:
    structure = replace(structure_of("resnet8"), recompute=True)
    artifact = build(structure, zoo.create(structure.spec, seed=0))
    batch: Tensors = {"x": np.zeros((2, *structure.spec.input_shape), np.float32), "y": np.zeros(2, np.int64)}
    with sessions.traced(tmp_path / "trace"):
        trainer = PortableTrainer(artifact)
    trainer.step(batch, learning_rate=0.1, seed=0)

    ran = {event["name"] for event in json.loads(Path(trainer.end_trace()).read_text())}

    assert any(name.startswith(f"{AGAIN}/Relu") for name in ran)


def test_a_builder_asked_for_less_memory_makes_all_artifacts_so() -> None:
    structure = structure_of("resnet8")

    made = Builder(recompute=True).build(structure)

    assert f"{AGAIN}/".encode() in made.train
