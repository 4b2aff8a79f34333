"""Activations made again in the backward pass instead of being kept: exactly the same numbers for less memory.

A value that the backward pass reads is made again when cheap operators (no products, no convolutions) make it of what
is kept anyway: say the output of a ReLU, of the normalised values before it. onnxruntime runs such a node right before
its reader, as long as it does not merge it with the first one, which `AGAIN` in the names tells a device.
"""

from collections.abc import Iterable

from fedwright.protocol.artifact import AGAIN
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node

# One pass over memory each.
_CHEAP = """
Add BatchNormalization Clip Concat Div Elu HardSigmoid HardSwish LayerNormalization LeakyRelu Mul Neg Pad Relu Reshape
Sigmoid Slice Softplus Sub Transpose
"""
CHEAP = frozenset(_CHEAP.split())
# How many operators in a row are run again for one value.
LONGEST = 4


def recompute(graph: Graph, forward: int) -> None:
    """Let the nodes after the first `forward` ones read values that are made again where that saves memory."""
    plan = _Plan(graph, forward)
    chosen = plan.choose()
    again: dict[str, str] = {}
    nodes = graph.nodes[:forward]
    for node in graph.nodes[forward:]:
        for name in node.inputs:
            if name in chosen and name not in again:
                nodes += plan.again(name, again)
        node.inputs = [again.get(name, name) for name in node.inputs]
        nodes.append(node)
    graph.nodes = nodes


class _Plan:
    """Which values of the forward pass are made again, and of which nodes."""

    def __init__(self, graph: Graph, forward: int) -> None:
        self._graph = graph
        self._forward = graph.nodes[:forward]
        self._makers = {node.outputs[0]: node for node in self._forward if node.outputs}
        self._made = {name for node in self._forward for name in node.outputs}
        self._read = {name for node in graph.nodes[forward:] for name in node.inputs}
        self._chosen: set[str] = set()

    def choose(self) -> set[str]:
        """In the order in which values are made: what is chosen is no longer there for those that follow."""
        for node in self._forward:
            name = node.outputs[0]
            if name in self._read and self._grows(name) and self._chain(node):
                self._chosen.add(name)
        return self._chosen

    def again(self, name: str, known: dict[str, str]) -> list[Node]:
        """The nodes that make a value once more, under new names."""
        nodes = []
        for node in self._chain(self._makers[name]) or []:
            fresh = self._graph.fresh(AGAIN)
            self._graph.record(fresh, self._graph.shape(node.outputs[0]), self._graph.dtype(node.outputs[0]))
            inputs = [known.get(item, item) for item in node.inputs]
            nodes.append(Node(node.op, inputs, [fresh], dict(node.attrs), module=AGAIN))
            known[node.outputs[0]] = fresh
        return nodes

    def _grows(self, name: str) -> bool:
        return self._graph.knows(name) and -1 in self._graph.shape(name)

    def _kept(self, name: str) -> bool:
        """Is this there in the backward pass without being kept for us?"""
        stays = name not in self._made or (name in self._read and name not in self._chosen)
        return stays or not self._grows(name)

    def _chain(self, last: Node) -> list[Node] | None:
        """The nodes that make the first output of `last` of kept values, in order; None when they are not cheap."""
        chain: list[Node] = []
        wanted = [last]
        while wanted:
            node = wanted.pop()
            if node.op not in CHEAP or len(chain) == LONGEST:
                return None
            if node not in chain:
                chain.insert(0, node)
            missing = [name for name in node.inputs if name and not self._kept(name)]
            if any(name not in self._makers or name in self._chosen for name in missing):
                return None
            wanted += [self._makers[name] for name in missing]
        return _in_order(chain, self._forward)


def _in_order(chain: Iterable[Node], nodes: list[Node]) -> list[Node]:
    wanted = {id(node) for node in chain}
    return [node for node in nodes if id(node) in wanted]
