"""An ONNX file as a torch module that holds its weights; training graphs are made of the file itself."""

import re
from typing import Any

import onnx
import torch
from onnx import helper
from torch import nn

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import GOALS
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.base import Input
from fedwright.server_runtime.zoo.onnx_file import BATCH, OnnxFile, read

LOGITS = "logits"


class OnnxModule(nn.Module):
    """Weights of a file as parameters, its running statistics as buffers; torch cannot run it.

    norm_names: its tensors that belong to normalisation layers.
    """

    def __init__(self, file: OnnxFile, spec: ModelSpec) -> None:
        super().__init__()
        self._where, self._shape, self._dtype = spec.model, _shape(file, spec), file.dtype
        self._graph = _with_one_output(file.model, spec)
        self._names: dict[str, str] = {}
        for name, array in file.weights.items():
            self._hold(name, nn.Parameter(torch.from_numpy(array.copy())))
        for name, array in file.statistics.items():
            self._hold(name, torch.from_numpy(array.copy()))
        self.norm_names = frozenset(self._names[name] for name in file.norms if name in self._names)

    def inputs(self) -> list[Input]:
        """One batch."""
        return [Input(BATCH, (-1, *self._shape), self._dtype)]  # type: ignore[arg-type]

    def forward(self, x: Any) -> Any:
        """Refused: only graphs of it are made."""
        raise ConfigError(
            f"{self._where} is a graph that torch cannot run or cut; use a method that trains it whole, such as fedavg"
        )

    def traced(self) -> onnx.ModelProto:
        """The graph that its mode asks for, in which weights and statistics are inputs by the names of this module."""
        model = onnx.ModelProto()
        model.CopyFrom(self._graph)
        for node in model.graph.node:
            owner = next((self._names[name] for name in node.input if name in self._names), "")
            training = self.get_submodule(owner.rpartition(".")[0]).training
            if node.op_type == "BatchNormalization":
                _set_normalisation(node, training=training)
            elif node.op_type == "Dropout":
                _set_dropout(model.graph, node, training=self.training)
            node.input[:] = [self._names.get(name, name) for name in node.input]
        for name, value in [*self.named_parameters(), *self.named_buffers()]:
            model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(value.shape)))
        return model

    def _hold(self, name: str, value: torch.Tensor) -> None:
        """Keep a tensor under its own name, with the parts of it as modules inside one another."""
        *parts, last = [part for part in re.split(r"[./:]+", name) if part] or ["tensor"]
        owner: nn.Module = self
        path = []
        for part in parts:
            while not isinstance(getattr(owner, part, None), nn.Module) and hasattr(owner, part):
                part += "_"
            if not hasattr(owner, part):
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
            path.append(part)
        while hasattr(owner, last):
            last += "_"
        if isinstance(value, nn.Parameter):
            owner.register_parameter(last, value)
        else:
            owner.register_buffer(last, value)
        self._names[name] = ".".join([*path, last])


def create(spec: ModelSpec) -> OnnxModule:
    """The module of the file that a spec names; ConfigError where data and file do not fit."""
    return OnnxModule(read(spec.model), spec)


def _shape(file: OnnxFile, spec: ModelSpec) -> tuple[int, ...]:
    """One sample's shape: what the file says, and the data where it leaves that open."""
    fits = len(file.dims) == len(spec.input_shape) and all(
        own in (None, other) for own, other in zip(file.dims, spec.input_shape, strict=True)
    )
    if not fits:
        own = ", ".join("any" if dim is None else str(dim) for dim in file.dims)
        raise ConfigError(f"{spec.model} reads samples of [{own}], but the data has {list(spec.input_shape)}")
    return spec.input_shape


def _with_one_output(model: onnx.ModelProto, spec: ModelSpec) -> onnx.ModelProto:
    """A copy whose only output is what the loss compares: of a last Softmax (or Sigmoid) what it reads."""
    named = [item.name for item in model.graph.output]
    if len(named) > 1 and LOGITS not in named:
        raise ConfigError(f"{spec.model} gives {', '.join(named[:5])}; export it with one output, or call one logits")
    name = LOGITS if LOGITS in named else named[0]
    last = "Sigmoid" if spec.goal == "multilabel" else "Softmax"
    made = {output: node for node in model.graph.node for output in node.output}
    if not (GOALS[spec.goal].numbers and last == "Softmax") and name in made and made[name].op_type == last:
        name = made[name].input[0]
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.output[:]
    found.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return found


def _set_normalisation(node: onnx.NodeProto, *, training: bool) -> None:
    """By the batch while it learns, by running statistics else."""
    for attribute in [item for item in node.attribute if item.name == "training_mode"]:
        node.attribute.remove(attribute)
    del node.output[1:]
    if training:
        node.attribute.append(helper.make_attribute("training_mode", 1))
        node.output.extend(f"{node.output[0]}/{what}" for what in ("mean", "variance"))


def _set_dropout(graph: onnx.GraphProto, node: onnx.NodeProto, *, training: bool) -> None:
    """Draws while it learns; the ratio is the file's, or 0.5 where it says none."""
    ratio = node.input[1] if len(node.input) > 1 and node.input[1] else ""
    if not ratio:
        ratio = f"{node.output[0]}/ratio"
        graph.initializer.append(helper.make_tensor(ratio, onnx.TensorProto.FLOAT, [], [0.5]))
    active = f"{node.output[0]}/active"
    graph.initializer.append(helper.make_tensor(active, onnx.TensorProto.BOOL, [], [training]))
    node.input[:] = [node.input[0], ratio, active]
