"""ONNX files as models: they train as the same layers in torch, and what cannot be trained is refused in a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper
from torch import nn

from fedwright.device_runtime.train.check import check_artifact
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.errors import BuildError, ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.classifier import classifier_names
from fedwright.server_runtime.artifacts.export import norm_tensors
from fedwright.server_runtime.spec import ModelSpec, Structure
from helpers.onnx_files import CLASSES, save, small, small_nodes, small_tensors

SHAPE = (1, 8, 8)


class _Small(nn.Module):
    """The layers of the file, written in torch."""

    def __init__(self, tensors: dict[str, NDArray[Any]]) -> None:
        super().__init__()
        self.conv, self.norm, self.dense = (
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.Linear(8, 10),
        )
        self.conv.weight.data = torch.tensor(tensors["conv/kernel:0"])
        self.dense.weight.data = torch.tensor(tensors["dense/kernel:0"].T.copy())
        self.dense.bias.data = torch.tensor(tensors["dense/bias:0"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.dense(self.norm(self.conv(x)).relu().mean((2, 3)))
        return found


def _losses(model: str, batch: dict[str, Any], *, steps: int) -> tuple[list[float], dict[str, NDArray[Any]]]:
    """Losses of some steps on the device's side, and the weights after them."""
    spec = ModelSpec(model, SHAPE, CLASSES)
    module = zoo.create(spec, seed=0)
    artifact = build(Structure(spec), module)
    check_artifact(artifact, batch=len(batch["x"]))
    trainer, weights = PortableTrainer(artifact, threads=1), initial_weights(module)
    trainer.load({slot.name: weights[slot.name] for slot in artifact.manifest.slots if slot.role != "optimizer"})
    return [float(trainer.step(batch, learning_rate=0.1, seed=0).loss) for _ in range(steps)], trainer.weights()


@pytest.mark.parametrize(
    ("nodes", "more"),
    [
        pytest.param(small_nodes(), {}, id="free batch"),
        pytest.param(small_nodes(batch=2), {"batch": 2}, id="made for one batch"),
        pytest.param(small_nodes(), {"opset": 13}, id="older operators"),
        pytest.param(small_nodes(axes_as_input=True), {"opset": 18}, id="newer operators"),
    ],
)
def test_a_file_trains_as_the_same_layers_in_torch(tmp_path: Path, nodes: list[Any], more: dict[str, Any]) -> None:
    tensors = small_tensors()
    axes = {"axes": np.array([2, 3], np.int64)} if "axes" in nodes[3].input else {}
    model = save(tmp_path / "small.onnx", nodes, {**tensors, **axes}, **more)
    rng = np.random.default_rng(1)
    batch = {"x": rng.standard_normal((6, *SHAPE)).astype(np.float32), "y": rng.integers(0, CLASSES, 6)}
    twin = _Small(tensors).double()
    optimizer, wanted = torch.optim.SGD(twin.parameters(), 0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(twin(torch.tensor(batch["x"]).double()), torch.tensor(batch["y"]))
        loss.backward()
        optimizer.step()
        wanted.append(float(loss.detach()))

    losses, weights = _losses(model, batch, steps=3)

    # The last Softmax of the file is part of the loss and not of the model.
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(weights["dense.kernel.0"].T, twin.dense.weight.detach(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        weights["bn.mean"], dict(twin.named_buffers())["norm.running_mean"], rtol=1e-4, atol=1e-6
    )


def test_layers_are_found_by_what_they_do(tmp_path: Path) -> None:
    spec = ModelSpec(small(tmp_path / "small.onnx"), SHAPE, CLASSES)
    module = zoo.create(spec, seed=0)

    assert classifier_names(spec, initial_weights(module)) == ["dense.kernel.0", "dense.bias.0"]
    assert norm_tensors(module) == {"bn.scale", "bn.offset", "bn.mean", "bn.var"}
    assert zoo.full_sizes(spec) == {}


def test_words_are_read_as_64_bit_integers(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "image"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "head"], ["out"]),
    ]
    rng = np.random.default_rng(0)
    tensors = {"table": rng.standard_normal((9, 4)), "head": rng.standard_normal((4, 3))}
    cast = {name: value.astype(np.float32) for name, value in tensors.items()}
    model = save(tmp_path / "words.onnx", nodes, cast, kind=onnx.TensorProto.INT32, shape=[5])
    spec = ModelSpec(model, (5,), 3)

    manifest = build(Structure(spec), zoo.create(spec, seed=0)).manifest

    assert [(value.name, value.dtype) for value in manifest.batch] == [("x", "int64"), ("y", "int64")]
    assert [slot.name for slot in manifest.slots] == ["table", "head"]


def _custom(path: Path) -> str:
    nodes = small_nodes()
    nodes[2] = helper.make_node("FastRelu", ["normed"], ["active"], domain="com.acme")
    return save(path, nodes, small_tensors(), domains=["com.acme"])


def _newer(path: Path) -> str:
    return save(path, small_nodes(), small_tensors(), opset=onnx.defs.onnx_opset_version() + 1)


def _mixed(path: Path) -> str:
    nodes = small_nodes()
    nodes[2] = helper.make_node("Softmax", ["normed"], ["active"], axis=0)
    return save(path, nodes, small_tensors())


def _spoilt(path: Path) -> str:
    return save(path, small_nodes(), small_tensors() | {"dense/bias:0": np.full(10, np.nan, np.float32)})


def _double(path: Path) -> str:
    nodes = [helper.make_node("Cast", ["image"], ["wide"], to=onnx.TensorProto.DOUBLE)]
    nodes.append(helper.make_node("MatMul", ["wide", "w"], ["long"]))
    nodes.append(helper.make_node("Cast", ["long"], ["out"], to=onnx.TensorProto.FLOAT))
    return save(path, nodes, {"w": np.ones((8, 3))})


def _two_outputs(path: Path) -> str:
    return save(path, small_nodes(), small_tensors(), outputs=["rows", "out"])


def _bytes_in(path: Path) -> str:
    nodes = [helper.make_node("Cast", ["image"], ["numbers"], to=onnx.TensorProto.FLOAT)]
    return save(path, nodes, {}, kind=onnx.TensorProto.UINT8, outputs=["numbers"])


def _without_weights(path: Path) -> str:
    return save(path, [helper.make_node("Relu", ["image"], ["out"])], {})


def _other_shape(path: Path) -> str:
    return small(path, shape=[1, 16, 16])


def _broken(path: Path) -> str:
    path.write_bytes(b"no graph at all")
    return f"onnx:{path}"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(_custom, "uses com.acme::FastRelu, which standard ONNX does not have", id="custom operator"),
        pytest.param(_newer, "which is newer than the", id="newer opset"),
        pytest.param(_mixed, "mixes the samples of a batch", id="mixed samples"),
        pytest.param(_spoilt, "dense/bias:0 holds values that are no numbers", id="no numbers"),
        pytest.param(_double, "w is float64, but devices train float32", id="float64"),
        pytest.param(_two_outputs, "gives rows, out; export it with one output", id="two outputs"),
        pytest.param(_bytes_in, "its input is UINT8, but devices give float32 or int64", id="bytes"),
        pytest.param(_without_weights, "has no weights as initializers", id="no weights"),
        pytest.param(_other_shape, r"reads samples of \[1, 16, 16\], but the data has \[1, 8, 8\]", id="other shape"),
        pytest.param(_broken, "is no ONNX file that can be read", id="broken file"),
        pytest.param(lambda path: f"onnx:{path}", "cannot be read: No such file", id="no file"),
    ],
)
def test_a_file_that_cannot_be_trained_is_refused_in_a_sentence(tmp_path: Path, make: Any, reason: str) -> None:
    model = make(tmp_path / "model.onnx")

    with pytest.raises(ConfigError, match=reason):
        zoo.create(ModelSpec(model, SHAPE, CLASSES), seed=0)


def test_outputs_for_other_classes_are_refused(tmp_path: Path) -> None:
    spec = ModelSpec(small(tmp_path / "small.onnx"), SHAPE, 7)

    with pytest.raises(BuildError, match=r"returns logits of shape \(-1, 10\) but there are 7 classes"):
        build(Structure(spec), zoo.create(spec, seed=0))


def test_torch_does_not_run_a_file(tmp_path: Path) -> None:
    module = zoo.create(ModelSpec(small(tmp_path / "small.onnx"), SHAPE, CLASSES), seed=0)

    with pytest.raises(ConfigError, match="use a method that trains it whole, such as fedavg"):
        module(torch.zeros(1, *SHAPE))
