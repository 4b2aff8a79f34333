"""How much of a gradient each sample makes up, layer by layer, and the sum with one weight for each sample.

Symbols: B samples, T positions of a sample, g gradient of a layer's output, a its input, c [B] the weights. Four forms;
the device knows them again in a graph and refuses others (protocol/private_graph.py):

    rows      M [B, size], made for each sample        ||M_b||²                       c M
    outer     a [B, k], g [B, o]                       ||a_b||² ||g_b||²              (c g)' a
    sequence  a [B, T, k], g [B, T, o]                 Σ_tt' <a_t, a_t'> <g_t, g_t'>  Σ_t (c g_t)' a_t
    tokens    places [B, T], g [B, T, d]               Σ_tt' [same place] <g_t, g_t'> c g_t added at its place
"""

from dataclasses import dataclass
from math import prod
from typing import Literal

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Shape


@dataclass(frozen=True)
class Factor:
    """The samples' gradients of one value of this shape; left: M, a or places.

    flip: the product is [k, o]. widths: k and o.
    """

    kind: Literal["rows", "outer", "sequence", "tokens"]
    left: str
    right: str = ""
    shape: Shape = ()
    flip: bool = False
    widths: tuple[int, int] = (0, 0)

    def squared_norms(self, graph: Graph) -> str:
        """||gradient of sample b||² for each b: [B]."""
        if self.kind == "rows":
            return _squares(graph, self.left)
        if self.kind == "outer":
            return graph.op("Mul", _squares(graph, self.left), _squares(graph, self.right))
        pairs = _gram(graph, self.right)
        if self.kind == "sequence":
            alike = _gram(graph, self.left)
        else:
            column, row = (graph.op("Unsqueeze", self.left, graph.ints(axis)) for axis in (2, 1))
            alike = graph.op("Cast", graph.op("Equal", column, row), to=1)
        return graph.op("ReduceSum", graph.op("Mul", alike, pairs), graph.ints(1, 2), keepdims=0)

    def weighted_sum(self, graph: Graph, weights: str) -> str:
        """Σ_b c_b · gradient of sample b, of the value's shape."""
        if self.kind == "rows":
            total = graph.op("MatMul", graph.op("Reshape", weights, graph.ints(1, -1)), self.left)
        elif self.kind == "tokens":
            return self._scattered(graph, weights)
        else:
            ones = (1,) * (1 if self.kind == "outer" else 2)
            scaled = graph.op("Mul", self.right, graph.op("Reshape", weights, graph.ints(-1, *ones)))
            left, right = self.left, scaled
            if self.kind == "sequence":
                inner, outer = self.widths
                left = graph.op("Reshape", left, graph.ints(-1, inner))
                right = graph.op("Reshape", right, graph.ints(-1, outer))
            first, second = (left, right) if self.flip else (right, left)
            total = graph.op("MatMul", graph.op("Transpose", first, perm=[1, 0]), second)
        return graph.op("Reshape", total, graph.ints(*self.shape), shape=self.shape)

    def _scattered(self, graph: Graph, weights: str) -> str:
        width = self.shape[-1]
        scaled = graph.op("Mul", self.right, graph.op("Reshape", weights, graph.ints(-1, 1, 1)))
        rows = graph.op("Reshape", scaled, graph.ints(-1, width))
        places = graph.op("Expand", graph.op("Reshape", self.left, graph.ints(-1, 1)), graph.op("Shape", rows))
        zeros = graph.op("ConstantOfShape", graph.ints(*self.shape))
        return graph.op("ScatterElements", zeros, places, rows, axis=0, reduction="add", shape=self.shape)

    def as_rows(self, graph: Graph) -> "Factor":
        """The same, made for each sample; for values that are used more than once."""
        if self.kind == "rows":
            return self
        if self.kind == "outer":
            column, row = (self.left, self.right) if self.flip else (self.right, self.left)
            made = graph.op(
                "Mul", graph.op("Unsqueeze", column, graph.ints(2)), graph.op("Unsqueeze", row, graph.ints(1))
            )
        else:
            turned, plain = (self.left, self.right) if self.flip else (self.right, self.left)
            made = graph.op("MatMul", graph.op("Transpose", turned, perm=[0, 2, 1]), plain)
        return Factor("rows", graph.op("Reshape", made, graph.ints(-1, prod(self.shape))), shape=self.shape)


def _squares(graph: Graph, matrix: str) -> str:
    return graph.op("ReduceSum", graph.op("Mul", matrix, matrix), graph.ints(1), keepdims=0)


def _gram(graph: Graph, value: str) -> str:
    return graph.op("MatMul", value, graph.op("Transpose", value, perm=[0, 2, 1]))
