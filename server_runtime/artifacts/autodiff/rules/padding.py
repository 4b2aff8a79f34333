"""Gradients of Pad: the border is cut off, and where it was made of the inside its gradient is added there."""

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.conv_forms import window
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.autodiff.rules.elementwise import Grads, only


@rule("Pad")
def pad(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """Padding with the opposite sign cuts the border off again."""
    pads = ctx.const_value(node.inputs[1])
    mode = node.attrs.get("mode", "constant")
    if pads is None or (len(node.inputs) > 3 and node.inputs[3]):
        raise UnsupportedOperator(f"Pad of mode {mode} with computed sizes", node.name, node.module)
    rank = len(pads) // 2
    dy = only(grads)
    if mode == "constant":
        return [ctx.graph.op("Pad", dy, ctx.graph.ints(*(-int(n) for n in pads)))]
    shape = ctx.shape(node.inputs[0])
    for axis in range(rank):
        before, after = int(pads[axis]), int(pads[rank + axis])
        if before or after:
            if shape[axis] == -1 or min(before, after) < 0:
                raise UnsupportedOperator(f"Pad of mode {mode} along a free size", node.name, node.module)
            dy = _fold(ctx.graph, dy, _Axis(axis, rank, shape[axis], before, after), mode)
    return [dy]


class _Axis:
    """One padded axis: its size before, and how much was added at each end."""

    def __init__(self, axis: int, rank: int, size: int, before: int, after: int) -> None:
        self.axis, self.rank, self.size, self.before, self.after = axis, rank, size, before, after

    def part(self, graph: Graph, value: str, start: int, stop: int) -> str:
        """[start, stop) along the axis."""
        return window(graph, value, {self.axis: (start, stop, 1)})

    def turned(self, graph: Graph, value: str, size: int) -> str:
        """The axis read backwards."""
        return window(graph, value, {self.axis: (size - 1, -size - 1, -1)})

    def at(self, graph: Graph, value: str, start: int, size: int) -> str:
        """Zeros as long as the axis was, with `value` from `start` on."""
        pads = [0] * (2 * self.rank)
        pads[self.axis], pads[self.rank + self.axis] = start, self.size - start - size
        return graph.op("Pad", value, graph.ints(*pads)) if any(pads) else value


def _fold(graph: Graph, dy: str, axis: _Axis, mode: str) -> str:
    """The inside of dy plus what its border copied."""
    size, before, after = axis.size, axis.before, axis.after
    parts = [axis.part(graph, dy, before, before + size)]
    for count, start, first in ((before, 0, True), (after, before + size, False)):
        if not count:
            continue
        border = axis.part(graph, dy, start, start + count)
        if mode == "edge":
            total = graph.op("ReduceSum", border, graph.ints(axis.axis), keepdims=1)
            parts.append(axis.at(graph, total, 0 if first else size - 1, 1))
        elif mode == "reflect":
            where = 1 if first else size - 1 - count
            parts.append(axis.at(graph, axis.turned(graph, border, count), where, count))
        else:
            parts.append(axis.at(graph, border, size - count if first else 0, count))
    return graph.op("Sum", *parts)
