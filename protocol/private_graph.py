"""Knows a training graph again in which one sample moves the weights by no more than the clip, before noise is added.

What a graph says of itself counts for nothing. For every parameter p the device looks back from the input noise/p:
next/p depends on samples only through S_p + noise/p, S_p is a sum over samples in one of four forms, its weights are
row_weight · min(1, clip / norm), and the squares in that norm have the terms of every S_p. What the forms are made of
must be one row per sample, made without any other sample: then (S_p) over all p moves by at most the clip when a sample
comes or goes, whatever else the graph computes.

A graph may give gradients instead (gradient/p): then the device runs each sample by itself, clips, sums and adds the
noise, and no next/p may depend on samples at all.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from fedwright.protocol.artifact import Manifest, TensorSpec
from fedwright.protocol.dataflow.analysis import follow_all
from fedwright.protocol.dataflow.outputs import given_values
from fedwright.protocol.dataflow.values import Kind, Rows, Value
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.onnx_outline import Graph, Node, Outline, Tensor

CLIP, EXPECTED, ROW_WEIGHT, NOISE, GRADIENT = "clip", "expected_batch", "row_weight", "noise/", "gradient/"
# Keeps the norm of a sample without any gradient from being divided by.
TINY = 1e-12
_MOVES = ("Reshape", "Transpose", "Identity", "Unsqueeze", "Squeeze", "Flatten")


class Term(NamedTuple):
    """What a sum over samples is made of: rows M; outer and sequence a, g; tokens places, g."""

    form: str
    left: str
    right: str = ""


class _Refused(Exception):
    """Why a graph is not private."""


def check_private(outline: Outline, manifest: Manifest, name: str) -> None:
    """Raise BadArtifact unless the graph, or the device with it, clips each sample and adds noise to every sum."""
    try:
        _Private(outline.graph, manifest, follow_all(outline.graph, given_values(manifest), what=name)).check()
    except _Refused as err:
        raise BadArtifact(f"{name} does not hide single samples: {err}; build it again") from err


class _Private:
    """One look at a graph."""

    def __init__(self, graph: Graph, manifest: Manifest, known: Mapping[str, Value]) -> None:
        self._manifest, self._known = manifest, known
        self._nodes = graph.nodes
        self._made = {name: node for node in graph.nodes for name in node.outputs if name}
        self._tensors: dict[str, Tensor] = {tensor.name: tensor for tensor in graph.tensors}

    def check(self) -> None:
        """All that the module says; _Refused where it does not hold."""
        if self._manifest.gradients:
            self._check_paths(set())
            return
        noisy = [self._noisy(spec) for spec in self._manifest.noise]
        weights = {weights for _, _, weights in noisy}
        if len(weights) != 1:
            raise _Refused("sums have unlike weights")
        sums, counted = Counter(term for _, term, _ in noisy), self._counted(weights.pop())
        if sums - counted:
            raise _Refused(f"the norm leaves out {next(iter(sums - counted)).left}")
        for term in sums:
            self._check_rows(term)
        self._check_paths({output for output, _, _ in noisy})

    def _noisy(self, spec: TensorSpec) -> tuple[str, Term, str]:
        """Where noise is added, the sum that it is added to, and its weights."""
        readers = [node for node in self._nodes if spec.name in node.inputs]
        if len(readers) != 1 or readers[0].operator != "Add" or len(readers[0].inputs) != 2:
            raise _Refused(f"{spec.name} is not added once")
        node = readers[0]
        value = self._other(node, spec.name)
        # A smaller sum would be stretched over the noise, and count once for each entry.
        if self._known[value].dims != tuple(spec.shape):
            raise _Refused(f"{spec.name} is not of the shape of its sum")
        term, weights = self._sum(self._moved(value))
        return node.outputs[0], term, weights

    def _sum(self, value: str) -> tuple[Term, str]:
        """The form of a sum over samples, and its weights [samples]."""
        node = self._node(value, "MatMul", "ScatterElements")
        if node.operator == "ScatterElements":
            return self._scattered(node)
        left, right = node.inputs
        if self._is_row(left):
            return Term("rows", right), self._row_of(left)
        turned = self._node(left, "Transpose")
        if turned.attributes.get("perm") != (1, 0):
            raise _Refused("a product is not turned")
        # Either factor may carry the weights.
        first, second = turned.inputs[0], right
        for scaled, other in ((first, second), (second, first)):
            found = self._weighted(scaled)
            if found is not None:
                inner, weights, flat = found
                plain = self._flattened(other) if flat else other
                return Term("sequence" if flat else "outer", plain, inner), weights
        raise _Refused("a sum has no weights")

    def _weighted(self, value: str) -> tuple[str, str, bool] | None:
        """(g, weights, whether positions were joined) of g · weights, perhaps as a matrix."""
        node = self._made.get(value)
        flat = node is not None and node.operator == "Reshape"
        if node is not None and flat:
            inner = self._made.get(node.inputs[0])
            if inner is None or not self._keeps_width(node):
                return None
            node = inner
        if node is None or node.operator != "Mul" or len(node.inputs) != 2:
            return None
        g, column = node.inputs
        made = self._made.get(column)
        wanted = (-1, 1, 1) if flat else (-1, 1)
        if made is None or made.operator != "Reshape" or self._numbers(made.inputs[1]) != wanted:
            return None
        return g, made.inputs[0], flat

    def _scattered(self, node: Node) -> tuple[Term, str]:
        zeros, places, rows = node.inputs
        empty = self._node(zeros, "ConstantOfShape")
        if (
            "value" in empty.attributes
            or node.attributes.get("axis", 0) != 0
            or node.attributes.get("reduction") != "add"
        ):
            raise _Refused("rows are not added up from zero")
        found = self._weighted(rows)
        spread = self._node(places, "Expand")
        column = self._node(spread.inputs[0], "Reshape")
        if found is None or not found[2] or self._numbers(column.inputs[1]) != (-1, 1):
            raise _Refused("rows of a table have no weights")
        return Term("tokens", column.inputs[0], found[0]), found[1]

    def _counted(self, weights: str) -> Counter[Term]:
        """The terms under the norm of weights = row_weight · min(1, clip / sqrt(Σ terms + tiny))."""
        least = self._other(self._node(weights, "Mul"), ROW_WEIGHT)
        low = self._node(least, "Min")
        ones = [name for name in low.inputs if self._is_number(name, most=1.0)]
        if len(low.inputs) != 2 or len(ones) != 1:
            raise _Refused("weights may pass 1")
        ratio = self._node(self._other(low, ones[0]), "Div")
        if ratio.inputs[0] != CLIP:
            raise _Refused("weights do not come of the clip")
        total = self._node(self._node(ratio.inputs[1], "Sqrt").inputs[0], "Add")
        tiny = [name for name in total.inputs if self._is_number(name, most=1.0)]
        if len(tiny) != 1:
            raise _Refused("the norm has another term")
        whole = self._other(total, tiny[0])
        node = self._made.get(whole)
        parts = node.inputs if node is not None and node.operator == "Sum" else (whole,)
        return Counter(self._squares(part) for part in parts)

    def _squares(self, value: str) -> Term:
        """The term whose squared norms a value has."""
        node = self._node(value, "Mul", "ReduceSum")
        if node.operator == "Mul":
            left, right = (self._plain_square(name) for name in node.inputs)
            return Term("outer", left, right)
        if self._numbers(node.inputs[1]) == (1,):
            return Term("rows", self._plain_square(value))
        if self._numbers(node.inputs[1]) != (1, 2) or node.attributes.get("keepdims", 1) != 0:
            raise _Refused("a norm is not summed over a sample")
        alike, pairs = self._node(node.inputs[0], "Mul").inputs
        made = self._node(alike, "MatMul", "Cast")
        return (
            Term("tokens", self._same(made), self._gram(pairs))
            if made.operator == "Cast"
            else Term("sequence", self._gram(alike), self._gram(pairs))
        )

    def _plain_square(self, value: str) -> str:
        """M of ReduceSum(M · M) over its second axis."""
        node = self._node(value, "ReduceSum")
        square = self._node(node.inputs[0], "Mul")
        is_whole = self._numbers(node.inputs[1]) == (1,) and node.attributes.get("keepdims", 1) == 0
        if not is_whole or square.inputs[0] != square.inputs[1]:
            raise _Refused("a norm is not made of squares")
        return square.inputs[0]

    def _gram(self, value: str) -> str:
        """a of a a'."""
        left, right = self._node(value, "MatMul").inputs
        turned = self._node(right, "Transpose")
        if turned.inputs[0] != left or turned.attributes.get("perm") != (0, 2, 1):
            raise _Refused("a norm is not made of products of a sample with itself")
        return left

    def _same(self, cast: Node) -> str:
        """places of [places_t = places_t']."""
        sides = [self._node(name, "Unsqueeze") for name in self._node(cast.inputs[0], "Equal").inputs]
        axes = {self._numbers(side.inputs[1]) for side in sides}
        if axes != {(1,), (2,)} or sides[0].inputs[0] != sides[1].inputs[0] or cast.attributes.get("to") != 1:
            raise _Refused("places are not compared with one another")
        return sides[0].inputs[0]

    def _check_rows(self, term: Term) -> None:
        """What a term is made of is a row for each sample, made without the others."""
        # A place below zero is another name for one from the end; the device's own data has none.
        if term.form == "tokens" and term.left not in {spec.name for spec in self._manifest.batch}:
            raise _Refused(f"the places {term.left} are not those of the data")
        ranks = {"rows": (2,), "outer": (2, 2), "sequence": (3, 3), "tokens": (2, 3)}[term.form]
        for name, rank in zip((term.left, term.right), ranks, strict=False):
            value = self._known[name]
            if value.rank != rank or (value.dims or (None,))[0] != Rows() or value.kind not in (Kind.FIXED, Kind.ROWS):
                raise _Refused(f"{name} is not one row for each sample")
            self._check_alone(name)

    def _check_alone(self, name: str) -> None:
        """No sum over samples, nor their number, went into a value."""
        waiting, seen = [name], set[str]()
        while waiting:
            value = waiting.pop()
            node = self._made.get(value)
            if value in seen or node is None:
                continue
            seen.add(value)
            if self._known[value].kind not in (Kind.FIXED, Kind.ROWS, Kind.PLACED):
                raise _Refused(f"{value}, which goes into {name}, knows more than one sample")
            if node.operator == "Size" or (node.operator == "Cast" and self._is_length(node.inputs[0])):
                raise _Refused(f"{value}, which goes into {name}, tells how many samples there are")
            waiting.extend(node.inputs)

    def _is_length(self, value: str) -> bool:
        """Whether a value comes of the shape of others."""
        waiting = [value]
        while waiting:
            node = self._made.get(waiting.pop())
            if node is not None:
                if node.operator in ("Shape", "Size"):
                    return True
                waiting.extend(node.inputs)
        return False

    def _check_paths(self, noisy: set[str]) -> None:
        """What the next step reads depends on samples only through what has noise."""
        sampled = {spec.name for spec in self._manifest.batch}
        for node in self._nodes:
            if sampled.intersection(node.inputs) or node.operator == "Scan":
                sampled.update(name for name in node.outputs if name not in noisy)
        for slot in self._manifest.slots:
            if slot.output in sampled:
                raise _Refused(f"{slot.output} depends on samples without noise")

    def _moved(self, value: str) -> str:
        """The value before its numbers were only moved about."""
        node = self._made.get(value)
        while node is not None and node.operator in _MOVES:
            value = node.inputs[0]
            node = self._made.get(value)
        return value

    def _flattened(self, value: str) -> str:
        node = self._node(value, "Reshape")
        if not self._keeps_width(node):
            raise _Refused("positions are paired otherwise than in the norm")
        return node.inputs[0]

    def _keeps_width(self, node: Node) -> bool:
        dims, target = self._known[node.inputs[0]].dims, self._numbers(node.inputs[1])
        return dims is not None and target is not None and len(target) == 2 and target == (-1, dims[-1])

    def _is_row(self, value: str) -> bool:
        node = self._made.get(value)
        return node is not None and node.operator == "Reshape" and self._numbers(node.inputs[1]) == (1, -1)

    def _row_of(self, value: str) -> str:
        return self._made[value].inputs[0]

    def _node(self, value: str, *operators: str) -> Node:
        node = self._made.get(value)
        if node is None or node.operator not in operators:
            raise _Refused(f"{value} is made by {node.operator if node else 'nothing'} and not by {operators[0]}")
        return node

    def _other(self, node: Node, name: str) -> str:
        rest = [other for other in node.inputs if other != name]
        if len(node.inputs) != 2 or len(rest) != 1:
            raise _Refused(f"{name} is not where it must be")
        return rest[0]

    def _numbers(self, name: str) -> tuple[int, ...] | None:
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.numbers

    def _is_number(self, name: str, *, most: float) -> bool:
        tensor = self._tensors.get(name)
        return (
            tensor is not None
            and tensor.floats is not None
            and len(tensor.floats) == 1
            and 0 <= tensor.floats[0] <= most
        )
