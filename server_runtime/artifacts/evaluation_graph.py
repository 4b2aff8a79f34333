"""The graph by which a device predicts."""

from dataclasses import dataclass

from torch import nn

from fedwright.server_runtime.artifacts.autodiff.finish import finish
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Value
from fedwright.server_runtime.artifacts.export import buffer_names, export
from fedwright.server_runtime.artifacts.packed import pack_frozen, unpack_late
from fedwright.server_runtime.spec import Structure

LOGITS, EMBEDDING = "logits", "embedding"


def make_external(graph: Graph, slots: set[str], weights: set[str]) -> dict[str, Value]:
    """Turn the weights that are no slot into initializers that the session is given by name."""
    frozen = {v.name: v for v in graph.inputs if v.name in weights and v.name not in slots}
    graph.external.update(frozen)
    graph.inputs = [value for value in graph.inputs if value.name not in frozen]
    return dict(graph.external)


@dataclass
class Evaluation:
    """A finished evaluation graph and the names of what it reads."""

    graph: Graph
    batch: list[str]
    slots: list[str]


def evaluation_graph(structure: Structure, module: nn.Module, frozen: dict[str, Value]) -> Evaluation:
    """From batch inputs and slots to logits and embedding."""
    forward = export(module, structure.spec, training=False)
    graph = forward.graph
    weights = {*forward.parameters, *forward.buffers}
    names = [name for name, _ in module.named_parameters() if name.startswith(structure.trainable)]
    slots = {n for n in [*names, *buffer_names(module)] if n in weights and n not in frozen}
    pack_frozen(graph, [name for name in forward.parameters if name not in slots], structure.packing)
    unpack_late(graph)
    make_external(graph, slots, weights)
    outputs = [(LOGITS, forward.logits[-1]), (EMBEDDING, forward.embedding)]
    finish(graph, outputs)
    batch = [value.name for value in forward.inputs]
    return Evaluation(graph, batch, [v.name for v in graph.inputs if v.name in slots])
