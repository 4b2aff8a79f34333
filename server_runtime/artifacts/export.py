"""torch.nn.Module -> forward Graph, by tracing once; parameters and buffers become inputs named as in the module."""

import copy
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import nn

from fedwright.protocol.errors import BuildError, UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.graph import OPSET, Graph, Node, Value
from fedwright.server_runtime.artifacts.autodiff.lowering import lower
from fedwright.server_runtime.artifacts.autodiff.patterns import mark_patterns
from fedwright.server_runtime.artifacts.autodiff.shapes import measure
from fedwright.server_runtime.artifacts.autodiff.simplify import simplify
from fedwright.server_runtime.artifacts.symbolics.registry import DOMAIN, quiet_tracing
from fedwright.server_runtime.artifacts.trial import check_runs, layer_calling
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.onnx_module import OnnxModule

Rewrite = Callable[[Graph, frozenset[str]], None]

# ScatterND is wrong with several threads, RNN is not on the list of devices: not even evaluation may use them.
_ALWAYS_LOWERED = frozenset({"ScatterND", "RNN"})
_EXAMPLES = 2
_EDGES = 3


@dataclass(frozen=True)
class Forward:
    """An exported module: its graph, the names of its outputs (shallow to deep exits) and of what it reads.

    running: the value that replaces each buffer after a step. norms: parameters of normalisation layers.
    """

    graph: Graph
    logits: tuple[str, ...]
    embedding: str
    inputs: tuple[Value, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    running: dict[str, str]
    norms: frozenset[str]


def initial_weights(module: nn.Module) -> dict[str, NDArray[Any]]:
    """Copies of the parameters and floating-point buffers of a module, named as an artifact's slots."""
    named: dict[str, torch.Tensor] = {**dict(module.named_parameters()), **dict(_buffers(module))}
    return {name: value.detach().cpu().numpy().astype(np.float32, copy=True) for name, value in named.items()}


def buffer_names(module: nn.Module) -> list[str]:
    """The buffers that an artifact treats as state."""
    return [name for name, _ in _buffers(module)]


def _buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that are saved and hold floating-point numbers; all others are constants of the graph."""
    saved = module.state_dict().keys()
    return ((name, value) for name, value in module.named_buffers() if name in saved and value.is_floating_point())


def model_inputs(module: nn.Module, spec: ModelSpec) -> tuple[Value, ...]:
    """The batch inputs of a module: what it declares, else one float32 `x` (int64 when it starts with an embedding)."""
    declared = getattr(module, "inputs", None)
    if callable(declared):
        named = [(item.name, tuple(item.shape), np.dtype(item.dtype)) for item in declared()]
        return tuple(Value(n, s, d, "batch" if i == 0 else n) for i, (n, s, d) in enumerate(named))
    tokens = _starts_with_embedding(module)
    return (Value("x", (-1, *spec.input_shape), np.dtype(np.int64 if tokens else np.float32)),)


def _starts_with_embedding(module: nn.Module) -> bool:
    """Does the first leaf module that a batch meets look up indices?"""
    leaves = [m for m in module.modules() if not list(m.children())]
    return bool(leaves) and isinstance(leaves[0], nn.Embedding | nn.EmbeddingBag)


def export(
    module: nn.Module,
    spec: ModelSpec,
    *,
    training: bool,
    frozen: frozenset[str] = frozenset(),
    rewrite: Rewrite | None = None,
) -> Forward:
    """The forward graph of a module; with `training`, layers whose parameters are all `frozen` stay in eval mode.

    `rewrite` may change the graph before layers are lowered; it also gets the names of normalisation parameters.
    """
    module = copy.deepcopy(module).cpu().float()
    module.train(training)
    if training and frozen:
        _freeze(module, frozen)
    _tell_apart(module)
    inputs = model_inputs(module, spec)
    if training and not isinstance(module, OnnxModule):
        check_runs(module, _examples(inputs))
    traced = module.traced() if isinstance(module, OnnxModule) else _trace(module, inputs)
    graph = _parse(traced, inputs, module)
    outputs = tuple(value.name for value in graph.outputs)
    simplify(graph, measure(graph))
    embedding = find_embedding(graph, outputs[-1], has_head=hasattr(module, "head"))
    embedding = _flat(graph, embedding)
    norms = norm_parameters(module)
    if rewrite is not None:
        rewrite(graph, norms)
    if training:
        mark_patterns(graph)
    running = _running(graph)
    if lower(graph, only=None if training else _ALWAYS_LOWERED) or rewrite is not None:
        measure(graph)
    read = {value.name for value in graph.inputs}
    names = [name for name, _ in module.named_parameters()]
    return Forward(
        graph,
        outputs,
        embedding,
        inputs,
        tuple(name for name in names if name in read),
        tuple(name for name, _ in _buffers(module) if name in read),
        running,
        norms,
    )


def export_function(module: nn.Module, inputs: tuple[Value, ...]) -> Graph:
    """The graph of a module without weights, such as a loss."""
    graph = _parse(_trace(module, inputs), inputs, module)
    simplify(graph, measure(graph))
    if lower(graph):
        measure(graph)
    return graph


def _running(graph: Graph) -> dict[str, str]:
    """Running statistics that training-mode normalisation replaces: name of the buffer -> name of its new value."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "BatchNormalization" and node.attrs.get("training_mode", 0):
            found.update(zip(node.inputs[3:5], node.outputs[1:3], strict=False))
    return found


def norm_parameters(module: nn.Module) -> frozenset[str]:
    """The parameters of normalisation layers."""
    if isinstance(module, OnnxModule):
        return module.norm_names & {name for name, _ in module.named_parameters()}
    return frozenset(f"{prefix}.{name}" for prefix, layer in _norms(module) for name, _ in layer.named_parameters())


def norm_tensors(module: nn.Module) -> frozenset[str]:
    """The parameters and running statistics of normalisation layers."""
    if isinstance(module, OnnxModule):
        return module.norm_names
    return frozenset(f"{prefix}.{name}" for prefix, layer in _norms(module) for name in layer.state_dict())


def _norms(module: nn.Module) -> list[tuple[str, nn.Module]]:
    kinds = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
    return [(prefix, layer) for prefix, layer in module.named_modules() if isinstance(layer, kinds)]


def _tell_apart(module: nn.Module) -> None:
    """Give every weight a value of its own: the exporter merges weights that are equal, say all-zero biases."""
    weights = [*module.parameters(), *(value for _, value in _buffers(module))]
    with torch.no_grad():
        for number, value in enumerate(weights, start=1):
            value.fill_(number / len(weights))


def _freeze(module: nn.Module, frozen: frozenset[str]) -> None:
    """Put layers with nothing to train in evaluation mode, so that their statistics and outputs stand still."""
    for prefix, layer in module.named_modules():
        own = [f"{prefix}.{name}" if prefix else name for name, _ in layer.named_parameters()]
        if own and frozen.issuperset(own):
            layer.eval()


def _trace(module: nn.Module, inputs: tuple[Value, ...]) -> onnx.ModelProto:
    buffer = io.BytesIO()
    with quiet_tracing():
        try:
            torch.onnx.export(
                module,
                _examples(inputs),
                buffer,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=OPSET,
                do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE,
                export_params=False,
                input_names=[value.name for value in inputs],
                dynamic_axes={v.name: {i: v.free for i, dim in enumerate(v.shape) if dim == -1} for v in inputs},
            )
        except torch.onnx.errors.UnsupportedOperatorError as err:
            operator = _operator_in(err)
            layer = layer_calling(module, _examples(inputs), operator)
            raise UnsupportedOperator(operator, "not exported", layer) from err
        except (RuntimeError, ValueError, TypeError, IndexError, torch.onnx.OnnxExporterError) as err:
            reason = (str(err).splitlines() or [type(err).__name__])[0][:300]
            raise BuildError(
                f"{type(module).__name__} cannot be traced with an input of shape {inputs[0].shape}: {reason}"
            ) from err
    return onnx.load_from_string(buffer.getvalue())


def _operator_in(err: Exception) -> str:
    words = [word.strip("'\",.") for word in str(err).split() if "::" in word]
    return words[0] if words else "unknown"


def _examples(inputs: tuple[Value, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(_example(value) for value in inputs)


def _example(value: Value) -> torch.Tensor:
    size = _EXAMPLES if value.free == "batch" else _EDGES
    return torch.from_numpy(np.zeros([size if dim == -1 else dim for dim in value.shape], value.dtype))


def _parse(model: onnx.ModelProto, inputs: tuple[Value, ...], module: nn.Module) -> Graph:
    """An exported model as a Graph whose inputs are the batch, the parameters and the buffers."""
    graph = Graph(inputs)
    known = {value.name for value in inputs}
    tensors: dict[str, torch.Tensor] = {**dict(module.named_parameters()), **dict(_buffers(module))}
    constants = dict(module.named_buffers())
    shared = _shared_names(module)
    for item in model.graph.input:
        if item.name in shared:
            graph.nodes.append(Node("Identity", [shared[item.name]], [item.name], name=item.name))
        elif item.name in tensors:
            graph.add_input(Value(item.name, tuple(tensors[item.name].shape)))
        elif item.name in constants:
            graph.initializers[item.name] = constants[item.name].numpy()
        elif item.name not in known:
            raise BuildError(f"the exported graph reads {item.name}, which is no parameter of the model; register it")
    for tensor in model.graph.initializer:
        graph.initializers[tensor.name] = numpy_helper.to_array(tensor)
    for proto in model.graph.node:
        _append(graph, proto)
    for output in model.graph.output:
        graph.outputs.append(Value(output.name, ()))
    for name, array in graph.initializers.items():
        graph.record(name, array.shape, array.dtype)
    return graph


def _shared_names(module: nn.Module) -> dict[str, str]:
    """Further names of parameters that several layers share -> the name that counts."""
    first = {id(value): name for name, value in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(value)] for name, value in every if first[id(value)] != name}


def _append(graph: Graph, proto: onnx.NodeProto) -> None:
    attrs = {item.name: _attribute(helper.get_attribute_value(item)) for item in proto.attribute}
    if proto.op_type == "Constant":
        graph.initializers[proto.output[0]] = numpy_helper.to_array(attrs["value"])
        return
    if "perm" in attrs:
        attrs["perm"] = [axis % len(attrs["perm"]) for axis in attrs["perm"]]
    module = ".".join(proto.name.split("/")[1:-1])
    if proto.domain == DOMAIN:
        graph.nodes.append(Node("Identity", list(proto.input), list(proto.output), {}, proto.name, module, stops=True))
        return
    graph.nodes.append(Node(proto.op_type, list(proto.input), list(proto.output), attrs, proto.name, module))


def _attribute(value: Any) -> Any:
    if isinstance(value, list):
        return [_attribute(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _flat(graph: Graph, value: str) -> str:
    """A value as one row per example."""
    shape = graph.shape(value)
    if len(shape) == 2:
        return value
    width = int(np.prod(shape[1:])) if -1 not in shape[1:] else 1
    return graph.op("Reshape", value, graph.ints(-1, width), shape=(-1, width))


def find_embedding(graph: Graph, logits: str, *, has_head: bool) -> str:
    """What the classifier reads: the input of `head`, else of the last matrix product on the way to the logits."""
    producers = graph.producers()
    if has_head:
        inside = [node for node in graph.nodes if node.module.split(".")[0] == "head"]
        made = {name for node in inside for name in node.outputs}
        entry = [n for node in inside for n in node.inputs if n in producers and n not in made]
        if entry:
            return entry[0]
    name = logits
    while name in producers:
        node = producers[name]
        if node.op in ("Gemm", "MatMul"):
            return node.inputs[0]
        name = next((n for n in node.inputs if n in producers), "")
    return logits
