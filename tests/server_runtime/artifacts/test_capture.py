"""Modules as graphs by torch.export: the same graphs as by tracing, and tracing where torch.export does not follow."""

import ast
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from fedwright.protocol.artifact import pack
from fedwright.protocol.errors import BuildError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts import capture
from fedwright.server_runtime.artifacts import export as exports
from fedwright.server_runtime.artifacts.autodiff.graph import Value
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.artifacts.captured.program import captured
from fedwright.server_runtime.artifacts.export import export
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from helpers.graphs import followed_anew, graph_gradients, relative_error, torch_gradients

# Nothing about their operators differs, so that the artifacts are the same bytes.
SAME_BYTES = ["mlp", "mlp-lora", "cnn-small", "cnn-lora", "lenet", "lenet-lora", "cnn1", "cnn3", "cnn-motion"]
# These have as many operators of each kind that computes; what arranges values is less.
SAME_WORK = ["cnn-gn", "resnet8", "resnet8-gn", "vit-tiny", "lstm-lm", "gcn4", "cnn-exits"]
ARRANGING = {"Reshape", "Shape", "Gather", "Concat", "Slice", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Cast"}
ARRANGING |= {"Constant", "ConstantOfShape", "Where", "Equal", "Mul", "Div", "Add", "Identity", "Range"}
SPEC = ModelSpec("test", (3, 8, 8), 3)


def _no_tracing(*_: object) -> None:
    raise AssertionError("it was traced")


def _no_torch_export(*_: object) -> None:
    raise Uncaptured("not asked")


def _artifact(name: str) -> onnx.ModelProto:
    entry = zoo.MODELS[name]
    spec = ModelSpec(name, entry.example_shape, entry.example_classes)
    return onnx.load_from_string(build(Structure(spec), followed_anew(spec, seed=1)).train)


def _both(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    with monkeypatch.context() as patch:
        patch.setattr(capture, "traced", _no_tracing)
        exported = _artifact(name)
    monkeypatch.setattr(capture, "captured", _no_torch_export)
    return exported, _artifact(name)


@pytest.mark.parametrize("name", SAME_BYTES)
def test_torch_export_and_tracing_make_the_same_artifact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exported, traced = _both(name, monkeypatch)

    assert exported.SerializeToString() == traced.SerializeToString()


@pytest.mark.parametrize("name", SAME_WORK)
def test_torch_export_and_tracing_make_graphs_of_the_same_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exported, traced = _both(name, monkeypatch)

    work = [Counter(n.op_type for n in m.graph.node if n.op_type not in ARRANGING) for m in (exported, traced)]
    assert work[0] == work[1]
    assert len(exported.graph.node) < 1.1 * len(traced.graph.node)


def test_a_model_of_the_zoo_is_followed_once_for_all_that_is_built_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[nn.Module] = []

    def counted(module: nn.Module, *given: Any, **options: Any) -> Any:
        followed.append(module)
        return capture.capture(module, *given, **options)

    monkeypatch.setattr(exports, "capture", counted)
    exports.zoo_graph.cache_clear()
    spec = ModelSpec("lenet", (1, 28, 28), 7)
    structures = [Structure(spec), Structure(spec, optimizer=Optimizer(momentum=0.9)), Structure(spec)]
    built = [pack(build(structure, zoo.create(spec, seed=2))) for structure in structures]

    # To train and to predict.
    assert len(followed) == 2
    assert built[0] == built[2] != built[1]
    assert built == [pack(build(structure, followed_anew(spec))) for structure in structures]


def test_modules_of_the_tracing_exporter_are_not_needed() -> None:
    package = Path(capture.__file__).parent
    always = [node for path in package.rglob("*.py") for node in ast.parse(path.read_text()).body]
    imported = [node.module or "" for node in always if isinstance(node, ast.ImportFrom)]

    assert not [name for name in imported if name.startswith("torch.onnx")]


class Layered(nn.Module):
    """Layers inside layers, to be told apart by their paths."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()))
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.body(x).flatten(1))
        return answer


def test_operators_know_the_layer_they_come_from() -> None:
    nodes = export(Layered(), SPEC, training=True).graph.nodes

    assert {"body.0", "body.1.0", "body.1.1", "head"} <= {node.module for node in nodes}


class Steps(nn.Module):
    """Values that are changed in place, whole ones and ones of which parts are read."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.last = nn.Linear(192, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1))
        if self.kind == "whole":
            x.mul_(2)
            x += 1
            x.tanh_()
        elif self.kind == "view of a whole":
            x.view(-1, 2, 3).mul_(3.0)
        elif self.kind == "part":
            part = x[:, :3]
            part.mul_(2)
        else:
            before = x.reshape(-1, 6)
            x.tanh_()
            x = x + before
        answer: torch.Tensor = self.last(x)
        return answer


def _error(module: nn.Module) -> float:
    """How far the gradients are from torch's."""
    rng = np.random.default_rng(0)
    batch = {"x": rng.standard_normal((4, 3, 8, 8)).astype(np.float32), "y": rng.integers(0, 3, 4)}
    return relative_error(graph_gradients(module, batch, 3)[1], torch_gradients(module, batch)[1])


def test_values_changed_in_place_have_the_gradients_of_torch() -> None:
    torch.manual_seed(0)

    assert _error(Steps("whole")) < 1e-5


@pytest.mark.parametrize("kind", ["view of a whole", "part", "read before"])
def test_a_change_in_place_that_tracing_gets_wrong_is_refused(kind: str) -> None:
    with pytest.raises(BuildError, match="Steps changes a value in place of which it reads other parts later"):
        export(Steps(kind), SPEC, training=True)


class Asks(nn.Module):
    """Takes the way that a constant tells."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(192, 3)
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 2.0 if bool(self.mask.all()) and int(self.mask.sum()) == 3 else 1.0
        answer: torch.Tensor = self.last(x.flatten(1)) * scale
        return answer


def test_what_python_asks_of_constants_is_answered_as_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "traced", _no_tracing)

    assert _error(Asks()) < 1e-5


class Sorts(nn.Module):
    """An operator that only the tracing exporter writes."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(192, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.last(x.flatten(1).sort(1).values)
        return answer


def test_what_has_no_form_is_traced_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, capture.__name__):
        assert _error(Sorts()) < 1e-5

    said = {record.message for record in caplog.records if record.name == capture.__name__}
    assert said == {"Sorts is traced, not exported: aten::sort has no form"}


class Fixed(nn.Module):
    """Makes a number of Python of the number of samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3] * int(x.shape[0])


def test_a_program_for_one_number_of_samples_is_not_taken() -> None:
    value = Value("x", (-1, 3, 8, 8))

    with pytest.raises(Uncaptured, match="fixes a size of x"):
        captured(Fixed(), (value,), (torch.zeros(2, 3, 8, 8),), [])
