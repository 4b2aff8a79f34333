"""Frozen matrices in few bits: a graph computes with them what it computes with the same numbers in full."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from fedwright.device_runtime.train.check import check_artifact
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import Artifact
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.packed import packed_specs
from fedwright.server_runtime.blocks.packing import Packing, is_packed, pack, unpack
from fedwright.server_runtime.spec import ModelSpec, Structure

# A linear net, convolutions, and words that are looked up before they meet an LSTM.
SPECS = {
    "mlp": ModelSpec("mlp", (70,), 4),
    "lenet": ModelSpec("lenet", (1, 12, 12), 4),
    "lstm-lm": ModelSpec("lstm-lm", (5,), 50),
}


def _trained(artifact: Artifact, slots: dict[str, Any], frozen: dict[str, Any], batch: dict[str, Any]) -> Any:
    check_artifact(artifact, batch=3)
    trainer = PortableTrainer(artifact, threads=1, frozen={v.name: frozen[v.name] for v in artifact.manifest.frozen})
    trainer.load({slot.name: slots[slot.name] for slot in artifact.manifest.slots})
    losses = [trainer.step(batch, learning_rate=0.1, seed=0).loss for _ in range(3)]
    return losses, trainer.weights(), trainer.predict(batch)[0]


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("model", SPECS)
def test_packed_matrices_train_as_their_numbers_in_full(model: str, kind: Packing) -> None:
    spec = SPECS[model]
    module = zoo.create(spec, seed=1)
    weights = initial_weights(module)
    # Where the first tensor trains, gradients go back through all the others.
    first = () if model == "lstm-lm" else (next(iter(weights)),)
    plain = Structure(spec, trainable=("head.bias", *first))
    full, packed = build(plain, module), build(replace(plain, packing=kind), module)
    used, sent = dict(weights), dict(weights)
    for name, value in weights.items():
        if is_packed(value.shape):
            entries, scales = pack(value, kind)
            used[name] = unpack(entries, scales, value.shape)
            entry_spec, scale_spec = packed_specs(name, value.shape, kind)
            sent |= {entry_spec.name: entries, scale_spec.name: scales}
    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, (3, 5)) if model == "lstm-lm" else rng.standard_normal((3, *spec.input_shape))
    batch = {"x": x if model == "lstm-lm" else x.astype(np.float32), "y": rng.integers(0, spec.classes, 3)}

    wanted, found = _trained(full, weights, used, batch), _trained(packed, weights, sent, batch)

    assert any(value.dtype in ("int8", "uint8") for value in packed.manifest.frozen)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    for name, value in wanted[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "share", "error"), [("int8", 0.26, 0.01), ("int4", 0.16, 0.15)])
def test_packing_is_small_and_near(kind: Packing, share: float, error: float) -> None:
    values = np.random.default_rng(0).standard_normal((128, 192)).astype(np.float32)
    values[3] = 0

    entries, scales = pack(values, kind)

    assert entries.nbytes + scales.nbytes <= share * values.nbytes
    back = unpack(entries, scales, values.shape)
    assert np.linalg.norm(back - values) <= error * np.linalg.norm(values)
    assert not back[3].any()


def test_four_bits_of_numbers_that_fit_are_exact() -> None:
    # Each block of 32 has the scale 1: its largest entry is 7.
    values = np.tile(np.arange(-8, 8).clip(-7, 7), 10 * 64).reshape(64, 160).astype(np.float32)

    np.testing.assert_array_equal(unpack(*pack(values, "int4"), values.shape), values)


def test_small_tensors_stay_as_they_are() -> None:
    spec = ModelSpec("mlp", (8,), 4)
    artifact = build(Structure(spec, trainable=("head",), packing="int8"), zoo.create(spec, seed=0))

    assert {value.dtype for value in artifact.manifest.frozen if value.name.endswith("bias")} == {"float32"}


def test_no_two_reshapes_in_a_row_unpack_a_matrix() -> None:
    """Onnxruntime makes one node of such a pair, and runs it and all that it reads before everything else."""
    spec = ModelSpec("python:helpers.task_models:make_deep", (64,), 4)
    artifact = build(Structure(spec, trainable=("8.",), packing="int4"), zoo.create(spec, seed=0))

    graph = onnx.load_from_string(artifact.train).graph
    made_by = {name: node for node in graph.node for name in node.output}
    reshapes = [node for node in graph.node if node.op_type == "Reshape" and node.input[0] in made_by]
    assert len(reshapes) >= 8
    assert not [node for node in reshapes if made_by[node.input[0]].op_type == "Reshape"]
