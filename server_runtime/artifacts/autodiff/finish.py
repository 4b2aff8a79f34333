"""Last pass over a graph: outputs get their names, dead nodes go, everything else gets short regular names."""

from collections.abc import Sequence
from itertools import count
from string import ascii_letters

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node, Value, outer_names


def finish(graph: Graph, outputs: Sequence[tuple[str, str]]) -> None:
    """Make `outputs` (name, value) the graph's outputs; equal graphs come out with equal names and order."""
    graph.outputs = []
    fixed = {value.name for value in graph.inputs} | set(graph.initializers)
    renamed: dict[str, str] = {}
    for name, value in outputs:
        shape, dtype = graph.shape(value), graph.dtype(value)
        if value in fixed or value in renamed:
            graph.nodes.append(Node("Identity", [renamed.get(value, value)], [name]))
        else:
            renamed[value] = name
        graph.record(name, shape, dtype)
        graph.outputs.append(Value(name, shape, dtype, free="any"))
    _rename(graph, renamed)
    graph.prune()
    _leaves_last(graph)
    _shorten(graph)


def _leaves_last(graph: Graph) -> None:
    """Put nodes that nobody reads at the end, the ones that should run first last.

    onnxruntime walks back from such nodes beginning with the last one, so this makes it run each update right after
    its gradient, while in plain order it would run the whole backward pass first and keep all gradients until then.
    """
    read = {name for node in graph.nodes for name in [*node.inputs, *outer_names(node)]}
    leaves = [node for node in graph.nodes if read.isdisjoint(node.outputs)]
    ends = {id(node) for node in leaves}
    graph.nodes = [node for node in graph.nodes if id(node) not in ends] + leaves[::-1]


def _rename(graph: Graph, renamed: dict[str, str]) -> None:
    for node in graph.nodes:
        node.inputs = [renamed.get(name, name) for name in node.inputs]
        node.outputs = [renamed.get(name, name) for name in node.outputs]


def _in_letters(number: int) -> str:
    """a, b, ..., Z, aa, ba, ...: a name in the fewest bytes."""
    name = ascii_letters[number % len(ascii_letters)]
    return name if number < len(ascii_letters) else name + _in_letters(number // len(ascii_letters) - 1)


def _shorten(graph: Graph) -> None:
    """Short names for values and constants, in the order of their first use."""
    public = {value.name for value in [*graph.inputs, *graph.outputs]} | set(graph.external)
    public |= {name for node in graph.nodes for name in outer_names(node)}
    names: dict[str, str] = {name: name for name in sorted(public)}
    short = (name for name in map(_in_letters, count()) if name not in public)
    for index, node in enumerate(graph.nodes):
        for name in [*node.inputs, *node.outputs]:
            if name and name not in names:
                names[name] = next(short)
        node.name = f"{node.module or 'step'}/{node.op}_{index}"
    for old, new in list(names.items()):
        if graph.knows(old):
            graph.record(new, graph.shape(old), graph.dtype(old))
    _rename(graph, names)
    graph.initializers = {names[n]: graph.initializers[n] for n in names if n in graph.initializers}
