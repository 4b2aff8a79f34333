"""Reverse-mode differentiation over a Graph: walk the nodes backwards, one small rule per operator.

A rule gets the forward node and the gradient of each of its outputs, appends nodes to the graph and
returns the gradient of each input. Gradients of a value that is read more than once are summed; two
common kinds are collected and joined by one node instead: the uses of one weight by many matrix
products (Concat + one Gemm) and the slices of one tensor (Concat instead of Pad + Add).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedwright.protocol.errors import BuildError, UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.graph import Array, Graph, Node, Shape, outer_names

Rule = Callable[["Backward", Node, list[str | None]], list[str | None]]
RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a gradient rule for these operators."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            RULES[op_type] = function
        return function

    return register


@dataclass(frozen=True)
class Product:
    """A gradient that is left^T @ right, both [rows, ...]."""

    left: str
    right: str


@dataclass(frozen=True)
class BackwardStep:
    """A gradient of the part [start, stop) of a value along one axis."""

    grad: str
    axis: int
    start: int
    stop: int


class Backward:
    """What rules work with: the graph, what is known of its values and the gradients collected so far."""

    def __init__(self, graph: Graph, needed: set[str]) -> None:
        self.graph = graph
        self._needed = needed
        self._sums: dict[str, list[str]] = {}
        self._products: dict[str, list[Product]] = {}
        self._rows: dict[str, list[str]] = {}
        self._pieces: dict[str, list[BackwardStep]] = {}
        self._stacked: dict[tuple[str, ...], str] = {}
        self._again: dict[str, str] = {}

    def needs(self, name: str) -> bool:
        """Does a gradient with respect to this value matter?"""
        return name in self._needed

    def shape(self, name: str) -> Shape:
        """Shape of a value; -1 = batch dimension."""
        return self.graph.shape(name)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Element type of a value."""
        return self.graph.dtype(name)

    def const_value(self, name: str) -> Array | None:
        """The value of a constant, None for anything else."""
        return self.graph.const_value(name)

    def saved(self, name: str) -> str:
        """A forward value for use in the backward pass: itself, or made again when that is cheaper than keeping it."""
        if name in self.graph.recompute and name not in self._again:
            self._again[name] = self.graph.recompute[name](self)
        return self._again.get(name, name)

    def add(self, name: str, grad: str) -> None:
        """Contribute a gradient of a value (a rule may also just return it)."""
        self._sums.setdefault(name, []).append(grad)

    def add_product(self, name: str, left: str, right: str) -> None:
        """Contribute left^T @ right to the gradient of a matrix."""
        self._products.setdefault(name, []).append(Product(left, right))

    def add_rows(self, name: str, rows: str) -> None:
        """Contribute the sum of the rows of a matrix to the gradient of a vector."""
        self._rows.setdefault(name, []).append(rows)

    def add_piece(self, name: str, piece: BackwardStep) -> None:
        """Contribute a gradient to a part of a value."""
        self._pieces.setdefault(name, []).append(piece)

    def reshape_like(self, value: str, like: str) -> str:
        """`value` with the shape of the known value `like`."""
        shape = self.shape(like)
        if shape.count(-1) <= 1:
            target = self.graph.ints(*shape)
        else:
            target = self.graph.op("Shape", like, shape=(len(shape),), dtype=np.int64)
        return self.graph.op("Reshape", value, target, shape=shape)

    def unbroadcast(self, grad: str, from_shape: Shape, to: str) -> str:
        """Sum a gradient over the axes along which `to` was broadcast to `from_shape`."""
        target = self.shape(to)
        if target == from_shape:
            return grad
        lead = len(from_shape) - len(target)
        axes = list(range(lead))
        axes += [lead + i for i, dim in enumerate(target) if dim == 1 and from_shape[lead + i] != 1]
        if axes:
            grad = self.graph.op("ReduceSum", grad, self.graph.ints(*axes), keepdims=0)
        kept = tuple(dim for i, dim in enumerate(from_shape) if i not in axes)
        return grad if kept == target else self.reshape_like(grad, to)

    def take(self, name: str) -> str | None:
        """The whole gradient of a value, once all its readers have contributed."""
        parts = self._sums.pop(name, [])
        products = self._products.pop(name, [])
        pieces = self._pieces.pop(name, [])
        rows = self._rows.pop(name, [])
        if products:
            left, right = self._stack(p.left for p in products), self._stack(p.right for p in products)
            parts.append(self.graph.op("Gemm", left, right, transA=1))
        if rows:
            parts.append(self.graph.op("ReduceSum", self._stack(rows), self.graph.ints(0), keepdims=0))
        parts.extend(self._join_pieces(name, pieces))
        if not parts:
            return None
        shape = self.shape(name)
        total = parts[0]
        if len(parts) == 2:
            total = self.graph.op("Add", *parts)
        elif len(parts) > 2:
            total = self.graph.op("Sum", *parts)
        self.graph.record(total, shape, self.dtype(name))
        return total

    def _stack(self, matrices: Iterable[str]) -> str:
        """Matrices below each other; the same stack is made only once."""
        key = tuple(matrices)
        if len(key) == 1:
            return key[0]
        if key not in self._stacked:
            self._stacked[key] = self.graph.op("Concat", *key, axis=0)
        return self._stacked[key]

    def _join_pieces(self, name: str, pieces: list[BackwardStep]) -> list[str]:
        joined = []
        for axis in sorted({piece.axis for piece in pieces}):
            rest = sorted((p for p in pieces if p.axis == axis), key=lambda p: p.start)
            while rest:
                row: list[BackwardStep] = []
                for piece in rest:
                    if not row or row[-1].stop <= piece.start:
                        row.append(piece)
                rest = [piece for piece in rest if piece not in row]
                joined.append(self._join_row(name, axis, row))
        return joined

    def _join_row(self, name: str, axis: int, row: list[BackwardStep]) -> str:
        """Disjoint pieces side by side; each is padded up to the start of the next."""
        shape = self.shape(name)
        parts = []
        for i, piece in enumerate(row):
            before = piece.start if i == 0 else 0
            after = (row[i + 1].start if i + 1 < len(row) else shape[axis]) - piece.stop
            parts.append(self._pad(piece.grad, axis, before, after, len(shape)))
        return parts[0] if len(parts) == 1 else self.graph.op("Concat", *parts, axis=axis)

    def _pad(self, value: str, axis: int, before: int, after: int, rank: int) -> str:
        if before == 0 and after == 0:
            return value
        pads = [0] * (2 * rank)
        pads[axis], pads[rank + axis] = before, after
        return self.graph.op("Pad", value, self.graph.ints(*pads))


def needed_values(graph: Graph, wrt: Sequence[str]) -> set[str]:
    """The floating-point values that depend on `wrt`."""
    needed = set(wrt)
    for node in graph.nodes:
        if node.stops:
            continue
        if needed.intersection(node.inputs) or needed.intersection(outer_names(node)):
            needed.update(name for name in node.outputs if graph.dtype(name).kind == "f")
    return needed


def differentiate(
    graph: Graph,
    loss: str,
    wrt: Sequence[str],
    *,
    ready: Callable[[str, str], None] | None = None,
    seed: str | None = None,
) -> dict[str, str]:
    """Append the backward pass of a scalar and return the gradient of each of `wrt` that the scalar depends on.

    `ready` is called with (parameter, gradient) as soon as a gradient is complete, so that what it
    appends (an update) runs before the rest of the backward pass and frees the gradient early. seed: a number that all
    gradients are multiplied by.
    """
    context = Backward(graph, needed_values(graph, wrt))
    if not context.needs(loss):
        raise BuildError(f"the loss {loss} does not depend on any trainable parameter; check the trainable prefixes")
    forward = list(graph.nodes)
    last_use = _first_readers(forward, set(wrt))
    gradients: dict[str, str] = {}
    shape = graph.shape(loss)
    if seed is None:
        seed = graph.constant(np.ones(shape, np.float32), "seed")
    if graph.shape(seed) != shape:
        seed = graph.op("Reshape", seed, graph.ints(*shape), shape=shape)
    context.add(loss, seed)
    for index in range(len(forward) - 1, -1, -1):
        _step(context, forward[index])
        for name in last_use.get(index, ()):
            grad = context.take(name)
            if grad is not None:
                gradients[name] = grad
                if ready is not None:
                    ready(name, grad)
    return gradients


def _first_readers(nodes: list[Node], names: set[str]) -> dict[int, list[str]]:
    """Index of the first node that reads each name: after it, walking backwards, the gradient is complete."""
    seen: set[str] = set()
    found: dict[int, list[str]] = {}
    for index, node in enumerate(nodes):
        for name in node.inputs:
            if name in names and name not in seen:
                seen.add(name)
                found.setdefault(index, []).append(name)
    return found


def _step(context: Backward, node: Node) -> None:
    """Apply the rule of one node if a gradient reaches it."""
    grads = arriving(context, node)
    if grads is not None:
        apply_rule(context, node, grads)


def arriving(context: Backward, node: Node) -> list[str | None] | None:
    """The gradients of a node's outputs, once all readers have contributed; None when none reaches it."""
    if not any(context.needs(name) for name in node.outputs):
        return None
    grads = [context.take(name) if name and context.needs(name) else None for name in node.outputs]
    return None if all(grad is None for grad in grads) else grads


def apply_rule(context: Backward, node: Node, grads: list[str | None]) -> None:
    """Contribute to the gradients of a node's inputs."""
    context.graph.module = node.module
    composite = context.graph.composites.get(node.outputs[0])
    if composite is not None and grads[0] is not None:
        targets = list(composite.inputs)
        results = composite.gradient(context, grads[0])
    else:
        if node.op not in RULES:
            raise UnsupportedOperator(node.op, node.name, node.module)
        targets = node.inputs
        results = RULES[node.op](context, node, grads)
    for name, result in zip(targets, results, strict=False):
        if name and result is not None and context.needs(name):
            context.add(name, result)
    context.graph.module = ""
