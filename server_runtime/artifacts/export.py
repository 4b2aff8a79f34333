"""torch.nn.Module -> forward Graph; parameters and buffers become inputs named as in the module."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Value
from fedwright.server_runtime.artifacts.autodiff.lowering import lower
from fedwright.server_runtime.artifacts.autodiff.patterns import mark_patterns
from fedwright.server_runtime.artifacts.autodiff.shapes import Seen, measure
from fedwright.server_runtime.artifacts.autodiff.simplify import simplify
from fedwright.server_runtime.artifacts.capture import capture
from fedwright.server_runtime.artifacts.module_tensors import saved_buffers, state_tensors
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.onnx_module import OnnxModule

Rewrite = Callable[[Graph, frozenset[str]], None]

# ScatterND is wrong with several threads, RNN is not on the list of devices: not even evaluation may use them.
_ALWAYS_LOWERED = frozenset({"ScatterND", "RNN"})


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
    named = state_tensors(module).items()
    return {name: value.detach().cpu().numpy().astype(np.float32, copy=True) for name, value in named}


def buffer_names(module: nn.Module) -> list[str]:
    """The buffers that an artifact treats as state."""
    return [name for name, _ in saved_buffers(module)]


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
    kept = frozen if training else frozenset()
    inputs = model_inputs(module, spec)
    if zoo.is_plain(module, spec):
        graph, seen = copy.deepcopy(zoo_graph(spec, training, kept))
    else:
        graph, seen = _graph(copy.deepcopy(module), inputs, training, kept)
    outputs = tuple(value.name for value in graph.outputs)
    simplify(graph, seen)
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
        tuple(name for name, _ in saved_buffers(module) if name in read),
        running,
        norms,
    )


@lru_cache(maxsize=16)
def zoo_graph(spec: ModelSpec, training: bool, frozen: frozenset[str]) -> tuple[Graph, dict[str, Seen]]:
    """The graph of a model of the zoo, followed once for all that is built of it; whoever changes it takes a copy."""
    module = zoo.create(spec, seed=0)
    return _graph(module, model_inputs(module, spec), training, frozen)


def _graph(
    module: nn.Module, inputs: tuple[Value, ...], training: bool, frozen: frozenset[str]
) -> tuple[Graph, dict[str, Seen]]:
    module = module.cpu().float()
    module.train(training)
    if frozen:
        _freeze(module, frozen)
    _tell_apart(module)
    return capture(module, inputs)


def export_function(module: nn.Module, inputs: tuple[Value, ...]) -> Graph:
    """The graph of a module without weights, such as a loss."""
    graph, seen = capture(module, inputs, checked=False)
    simplify(graph, seen)
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
    weights = [*module.parameters(), *(value for _, value in saved_buffers(module))]
    with torch.no_grad():
        for number, value in enumerate(weights, start=1):
            value.fill_(number / len(weights))


def _freeze(module: nn.Module, frozen: frozenset[str]) -> None:
    """Put layers with nothing to train in evaluation mode, so that their statistics and outputs stand still."""
    for prefix, layer in module.named_modules():
        own = [f"{prefix}.{name}" if prefix else name for name, _ in layer.named_parameters()]
        if own and frozen.issuperset(own):
            layer.eval()


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
