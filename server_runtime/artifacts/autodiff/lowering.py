"""Rewriting of forward nodes before differentiation: forms that train faster, or that have gradient rules at all.

A lowering gets the graph and a node; it appends the nodes that replace it, calls `graph.rename_output`
for each of the node's outputs and returns True, or returns False to leave the node as it is. Shapes of the
nodes it appends are measured afterwards.
"""

from collections import Counter
from collections.abc import Callable

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node

Lowering = Callable[[Graph, Node], bool]
LOWERINGS: dict[str, Lowering] = {}


def lowering(*op_types: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for these operators."""

    def register(function: Lowering) -> Lowering:
        for op_type in op_types:
            LOWERINGS[op_type] = function
        return function

    return register


def lower(graph: Graph, *, only: frozenset[str] | None = None) -> bool:
    """Apply every lowering (or those of `only` these operators) once, in execution order; True if anything changed."""
    graph.uses = Counter(name for node in graph.nodes for name in node.inputs)
    graph.uses.update(value.name for value in graph.outputs)
    old, graph.nodes = graph.nodes, []
    changed = False
    for node in old:
        graph.module = node.module
        function = LOWERINGS.get(node.op) if only is None or node.op in only else None
        if function is not None and function(graph, node):
            changed = True
        else:
            graph.nodes.append(node)
    graph.module = ""
    return changed
