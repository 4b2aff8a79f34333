"""Artifacts: cache, determinism, free batch size, frozen bases, evaluation mode, errors."""

import copy
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import MAX_IR, MAX_OPSET, pack
from fedwright.protocol.errors import BuildError, UnsupportedOperator
from fedwright.server_runtime.artifacts import builder as builder_module
from fedwright.server_runtime.artifacts.builder import Builder, build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from helpers.graphs import Stepper, relative_error, structure_of, torch_gradients
from helpers.present import present
from helpers.torch_trainer import TorchTrainer

SPEC = ModelSpec("lenet", (1, 28, 28), 10)


class Small(nn.Module):
    """A normalised convolution with dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.drop(torch.relu(self.norm(self.conv(x))).flatten(1)))
        return answer


def _batch(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((count, 2, 4, 4)).astype(np.float32), "y": rng.integers(0, 3, count)}


def test_equal_structures_give_equal_bytes() -> None:
    first, second = (Builder().build(Structure(SPEC, optimizer=Optimizer(momentum=0.9))) for _ in range(2))

    assert pack(first) == pack(second)


def test_two_processes_build_the_same_bytes() -> None:
    program = (
        "import hashlib\n"
        "from fedwright.protocol.artifact import pack\n"
        "from fedwright.server_runtime.artifacts.builder import Builder\n"
        "from fedwright.server_runtime.spec import ModelSpec, Structure\n"
        "artifact = Builder().build(Structure(ModelSpec('lstm-lm', (5,), 50)))\n"
        "print(hashlib.sha256(pack(artifact)).hexdigest())\n"
    )
    # the hash seed is what differs between processes: it decides the order of sets
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        for seed in ("1", "2")
    ]

    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.strip()) == 64


def test_weights_do_not_enter_the_artifact() -> None:
    torch.manual_seed(0)
    one = build(structure_of((2, 4, 4), 3), Small())
    other = build(structure_of((2, 4, 4), 3), Small())

    assert pack(one) == pack(other)


def test_a_second_build_comes_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    first = builder.build(Structure(SPEC))
    monkeypatch.setattr(builder_module, "build", lambda *_: pytest.fail("built twice"))

    assert builder.build(Structure(SPEC)) is first


def test_another_process_reads_it_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Builder(tmp_path).build(Structure(SPEC))
    monkeypatch.setattr(builder_module, "build", lambda *_: pytest.fail("built twice"))

    assert Builder(tmp_path).build(Structure(SPEC)) == first


def test_a_damaged_cache_file_is_built_anew(tmp_path: Path) -> None:
    first = Builder(tmp_path).build(Structure(SPEC))
    (path,) = tmp_path.iterdir()
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 1
    path.write_bytes(bytes(blob))

    assert Builder(tmp_path).build(Structure(SPEC)) == first
    assert path.read_bytes() == pack(first)


def test_a_users_module_is_never_taken_from_an_older_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "mine_that_changes.py"
    spec = ModelSpec("python:mine_that_changes:make", (6,), 3)
    hidden = []
    for size in (5, 17):
        source.write_text(
            "from torch import nn\n"
            "def make(input_shape, classes):\n"
            f"    return nn.Sequential(nn.Linear(6, {size}), nn.ReLU(), nn.Linear({size}, classes))\n"
        )
        monkeypatch.delitem(sys.modules, "mine_that_changes", raising=False)
        importlib.invalidate_caches()
        artifact = Builder(tmp_path / "cache").build(Structure(spec))
        hidden.append(artifact.manifest.slots[0].shape[0])

    assert hidden == [5, 17]


def test_graphs_use_only_standard_operators_of_an_old_opset() -> None:
    artifact = build(structure_of((2, 4, 4), 3), Small())

    for data in (artifact.train, artifact.eval):
        model = onnx.load_from_string(data)
        onnx.checker.check_model(model)
        assert model.ir_version <= MAX_IR
        assert [(item.domain, item.version <= MAX_OPSET) for item in model.opset_import] == [("", True)]
        assert {node.domain for node in model.graph.node} == {""}


def test_batch_size_is_free() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 3))
    artifact = build(structure_of((2, 4, 4), 3), module)
    weights = initial_weights(module)

    for count in (1, 2, 9):
        batch = _batch(count)
        stepper = Stepper(artifact, weights)
        stepper.step(batch, learning_rate=1.0)
        found = {name: weights[name] - stepper.slots[name] for name in weights}
        assert relative_error(found, torch_gradients(module, batch)[1]) < 1e-5


def test_correct_counts_right_predictions() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    batch = _batch(20)
    outputs = Stepper(build(structure_of((2, 4, 4), 3), module), initial_weights(module)).step(batch)

    with torch.no_grad():
        guessed = module(torch.from_numpy(batch["x"])).argmax(1).numpy()
    assert float(outputs["correct"]) == float((guessed == batch["y"]).sum())


def test_running_statistics_follow_torch_and_evaluation_uses_them() -> None:
    torch.manual_seed(1)
    module = Small()
    stepper = Stepper(build(structure_of((2, 4, 4), 3), module), initial_weights(module))
    twin = copy.deepcopy(module).train()

    for seed in range(3):
        batch = _batch(6, seed)
        stepper.step(batch, learning_rate=0.0)
        twin(torch.from_numpy(batch["x"]))

    np.testing.assert_allclose(stepper.slots["norm.running_var"], present(twin.norm.running_var).numpy(), rtol=1e-5)
    np.testing.assert_allclose(stepper.slots["norm.running_mean"], present(twin.norm.running_mean).numpy(), atol=1e-6)
    logits, embedding = stepper.predict(batch)
    with torch.no_grad():
        wanted = twin.eval()(torch.from_numpy(batch["x"])).numpy()
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
    assert embedding.shape == (6, 64)


def test_slots_name_parameters_then_buffers_then_optimizer_state() -> None:
    manifest = build(structure_of((2, 4, 4), 3, optimizer=Optimizer(momentum=0.9)), Small()).manifest

    roles = [slot.role for slot in manifest.slots]
    assert roles == ["trainable"] * 6 + ["buffer"] * 2 + ["optimizer"] * 6
    names = {slot.name for slot in manifest.slots if slot.role != "optimizer"}
    assert names == initial_weights(Small()).keys()


def test_only_the_head_trains_over_a_frozen_base() -> None:
    torch.manual_seed(2)
    module = Small()
    module.drop.p = 0.0
    weights = initial_weights(module)
    artifact = build(structure_of((2, 4, 4), 3, trainable=("head",)), module)
    stepper = Stepper(artifact, weights)
    batch = _batch(6)

    stepper.step(batch, learning_rate=1.0)

    assert set(stepper.slots) == {"head.weight", "head.bias"}
    assert {spec.name for spec in artifact.manifest.frozen} == weights.keys() - stepper.slots.keys()
    # the frozen layers work as in evaluation, so their statistics stand still
    twin = copy.deepcopy(module).eval()
    nn.functional.cross_entropy(twin(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"])).backward()
    np.testing.assert_allclose(
        weights["head.weight"] - stepper.slots["head.weight"], present(twin.head.weight.grad), atol=1e-6
    )
    assert len(artifact.train) < 20_000


def test_trainable_prefixes_that_match_nothing_are_refused() -> None:
    with pytest.raises(BuildError, match=r"no parameter of test starts with any of \['lora'\]"):
        build(structure_of((2, 4, 4), 3, trainable=("lora",)), Small())


def test_shared_parameters_train_as_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.two.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.head(torch.tanh(self.two(torch.tanh(self.one(x)))))
            return answer

    torch.manual_seed(3)
    module = Tied()
    batch = {"x": np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32), "y": np.array([0, 1, 2, 0, 1])}
    weights = initial_weights(module)
    stepper = Stepper(build(structure_of((6,), 3), module), weights)

    stepper.step(batch, learning_rate=1.0)

    found = {name: weights[name] - stepper.slots[name] for name in weights}
    assert relative_error(found, torch_gradients(module, batch)[1]) < 1e-5


def test_an_unused_parameter_is_kept_as_it_is() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    module.register_parameter("idle", nn.Parameter(torch.ones(2)))
    stepper = Stepper(build(structure_of((2, 4, 4), 3), module), initial_weights(module))

    stepper.step(_batch(4))

    np.testing.assert_array_equal(stepper.slots["idle"], [1.0, 1.0])


def test_a_parameter_that_the_loss_does_not_reach_is_kept_as_it_is() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(32, 500), nn.Linear(500, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.head(torch.sign(self.body(x.flatten(1))))
            return answer

    module = Detached()
    weights = initial_weights(module)
    artifact = build(structure_of((2, 4, 4), 3, optimizer=Optimizer(momentum=0.9, weight_decay=0.1)), module)
    stepper = Stepper(artifact, weights)

    stepper.step(_batch(4))

    np.testing.assert_array_equal(stepper.slots["body.weight"], weights["body.weight"])
    assert np.all(stepper.slots["head.weight"] != weights["head.weight"])
    assert len(artifact.train) < 20_000


def test_an_operator_without_a_rule_is_named_with_its_module() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.det(x.reshape(-1, 2, 2)).reshape(-1, 1)

    module = nn.Sequential(nn.Flatten(), nn.Linear(32, 4), Odd(), nn.Linear(1, 3))

    with pytest.raises(UnsupportedOperator, match=r"operator Det .*module 2\)") as caught:
        build(structure_of((2, 4, 4), 3), module)

    assert (caught.value.operator, caught.value.module) == ("Det", "2")


def test_an_operator_that_cannot_be_exported_is_named() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = torch.special.bessel_j0(x)
            return answer

    with pytest.raises(UnsupportedOperator, match=r"bessel_j0 .*module 2 \(Odd\)\)"):
        build(structure_of((2, 4, 4), 3), nn.Sequential(nn.Flatten(), nn.Linear(32, 3), Odd()))


def test_an_input_of_the_wrong_shape_is_explained() -> None:
    with pytest.raises(BuildError, match=r"layer 0 \(Linear\) does not run with a batch of shape \(2, 5\)"):
        build(structure_of((5,), 3), nn.Sequential(nn.Linear(32, 3)))


def test_a_wrong_number_of_classes_is_explained() -> None:
    with pytest.raises(BuildError, match="there are 7 classes"):
        build(structure_of((32,), 7), nn.Sequential(nn.Linear(32, 3)))


def test_the_module_is_left_as_it_was() -> None:
    module = Small().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()

    build(structure_of((2, 4, 4), 3), module)

    assert not module.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_memory_estimate_counts_state_twice_and_grows_with_width() -> None:
    sizes = [build(structure_of((32,), 3), _wide(width)).manifest for width in (64, 256)]

    parameters = 32 * 64 + 64 + 64 * 3 + 3
    assert sizes[0].fixed_bytes >= 2 * 4 * parameters
    assert sizes[1].sample_bytes > 3 * sizes[0].sample_bytes


def _wide(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 3))


def test_parameters_without_a_gradient_travel_and_stay_as_they_are() -> None:
    module = Small()
    module.conv.requires_grad_(False)
    module.norm.requires_grad_(False)
    structure = structure_of((2, 4, 4), 3)
    artifact = build(structure, module)
    roles = {slot.name: slot.role for slot in artifact.manifest.slots}
    assert {name for name, role in roles.items() if role == "trainable"} == {"head.weight", "head.bias"}
    assert roles["conv.weight"] == "buffer"
    rng = np.random.default_rng(1)
    batch = {"x": rng.normal(size=(4, 2, 4, 4)).astype(np.float32), "y": np.array([0, 1, 2, 0])}
    start, trainer = initial_weights(module), PortableTrainer(artifact)
    twin = TorchTrainer(module, structure.optimizer)
    for each in (trainer, twin):
        each.load(start)
        each.step(batch, learning_rate=0.1, seed=1)
    # Also the statistics of a layer that does not learn.
    moved = {name for name, value in trainer.weights().items() if (value != start[name]).any()}
    assert moved == {"head.weight", "head.bias"}
    assert twin.weights().keys() == trainer.weights().keys()
    assert {name for name, value in twin.weights().items() if (value != start[name]).any()} == moved


def test_a_module_that_trains_nothing_is_told_so() -> None:
    with pytest.raises(BuildError, match="has requires_grad = False; let some of it train"):
        build(structure_of((2, 4, 4), 3), Small().requires_grad_(False))
