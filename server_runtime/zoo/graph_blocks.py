"""Blocks of a module found in its graph: what lies between two places that a single tensor passes.

A module is traced once. Behind every step the values are counted that later steps still need; where that is one tensor,
made by the step itself, the graph can be cut. A residual sum needs two until it is done, so it stays inside a block.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from fedwright.protocol.errors import ConfigError

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)
_NORM_FUNCTIONS = (functional.batch_norm, functional.group_norm, functional.layer_norm, functional.instance_norm)
_FLATTENS = ("flatten", "reshape", "view")
# What tells of a tensor and is none, such as the batch in `x.view(x.size(0), -1)`.
_FACTS = ("size", "dim", "numel")
# What tracing a forward pass can fail with that is more than a fixed row of steps.
UNTRACEABLE = (
    fx.proxy.TraceError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
)

Step = list[fx.Node]


def graph_units(module: nn.Module) -> list[nn.Module]:
    """The blocks of a module by its graph, in order; ConfigError says why there are none."""
    try:
        graph = fx.Tracer().trace(module)
    except UNTRACEABLE as err:
        reason = (str(err).splitlines() or [type(err).__name__])[0][:200]
        raise ConfigError(f"its forward pass cannot be traced ({reason})") from err
    source, steps = _steps(graph)
    units = _with_weights(module, _between_cuts(source, steps))
    if len(units) < 2:
        raise ConfigError("no single tensor passes between any two of its layers")
    entries = [source, *(unit[-1] for unit in units[:-1])]
    return [_as_module(module, unit, entry) for unit, entry in zip(units, entries, strict=True)]


def _steps(graph: fx.Graph) -> tuple[fx.Node, Step]:
    """The input of a graph and what is computed of it, in order; weights are read where they are used."""
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    ends = [node for node in graph.nodes if node.op == "output"]
    if len(sources) != 1 or not isinstance(ends[0].args[0], fx.Node):
        raise ConfigError("it takes or gives more than one tensor")
    return sources[0], [node for node in graph.nodes if node.op not in ("placeholder", "output", "get_attr")]


def _between_cuts(source: fx.Node, steps: Step) -> list[Step]:
    """The steps between places that one tensor passes."""
    at = {node: number for number, node in enumerate(steps)}
    # The last step that needs each value; what the output needs is needed for ever.
    last = {node: max((at.get(user, len(steps)) for user in node.users), default=-1) for node in [source, *steps]}
    pieces: list[Step] = [[]]
    for number, node in enumerate(steps):
        pieces[-1].append(node)
        crossing = [value for value in [source, *steps[: number + 1]] if last[value] > number]
        if crossing == [node] and not _is_fact(node):
            pieces.append([])
    return [piece for piece in pieces if piece]


def _is_fact(node: fx.Node) -> bool:
    return (node.op == "call_method" and node.target in _FACTS) or node.target in (getattr, operator.getitem)


def _with_weights(module: nn.Module, pieces: Sequence[Step]) -> list[Step]:
    """Pieces joined into units: each begins at a layer with weights, or at the flattening before one."""
    units: list[Step] = []
    waits = False
    for piece in pieces:
        weighs = any(_weighs(module, node) for node in piece)
        if not units or (weighs and not waits) or _flattens(module, piece[-1]):
            units.append([])
        units[-1] += piece
        # Steps before the first weights, and a flattening, wait for the layer that they belong to.
        waits = not any(_weighs(module, node) for node in units[-1])
    if len(units) > 1 and waits:
        # Nothing with weights came behind the last flattening.
        units[-2:] = [units[-2] + units[-1]]
    return units


def _weighs(module: nn.Module, node: fx.Node) -> bool:
    """Whether a step has weights that are not those of a normalisation."""
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return not isinstance(layer, NORMS) and any(True for _ in layer.parameters())
    return node.target not in _NORM_FUNCTIONS and any(_is_weight(module, read) for read in node.all_input_nodes)


def _is_weight(module: nn.Module, node: fx.Node) -> bool:
    return node.op == "get_attr" and isinstance(_attribute(module, str(node.target)), nn.Parameter)


def _attribute(module: nn.Module, target: str) -> Any:
    value: Any = module
    for name in target.split("."):
        value = getattr(value, name)
    return value


def _flattens(module: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), nn.Flatten)
    return node.target is torch.flatten or (node.op == "call_method" and node.target in _FLATTENS)


def _as_module(module: nn.Module, unit: Step, entry: fx.Node) -> nn.Module:
    """The steps of a unit as a module of their own, with the layers of the whole under their names."""
    graph = fx.Graph()
    known = {entry: graph.placeholder("x")}
    for node in unit:
        for read in _weights_of(node, known):
            known[read] = graph.node_copy(read)
        known[node] = graph.node_copy(node, lambda given: known[given])
    graph.output(known[unit[-1]])
    return fx.GraphModule(module, graph)


def _weights_of(node: fx.Node, known: dict[fx.Node, fx.Node]) -> Iterator[fx.Node]:
    return (read for read in node.all_input_nodes if read.op == "get_attr" and read not in known)
