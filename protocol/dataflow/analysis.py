"""Follows the samples of a batch through a graph, operator by operator, before anything runs.

The promise: a value called FIXED or SUM does not change when the samples of a batch change places, and holds nothing of
them but sums over all. What a sum hides is another matter: weights can be chosen so that one sample outweighs the
others in it, and a sum over a batch of one is that sample.
"""

from collections.abc import Callable, Mapping, Sequence

from fedwright.protocol.dataflow import maths, picks, shapes, stretching
from fedwright.protocol.dataflow.dropout import Masks
from fedwright.protocol.dataflow.values import Kind, Rows, Value, product, spoilt, with_dims
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.onnx_outline import Graph, Node, Tensor

Rule = Callable[[Node, Sequence[Value]], list[Value]]

# A Scan's state knows after a few rounds whether it comes to hold samples.
_ROUNDS = 6

_ELEMENTWISE = """
Abs Acos Acosh Add And Asin Asinh Atan Atanh Ceil Clip Cos Cosh Div Elu Equal Erf Exp Floor Greater GreaterOrEqual
HardSigmoid HardSwish IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mod Neg Not Or PRelu Pow Reciprocal Relu
Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Tan Tanh Xor
"""
_REDUCTIONS = """
ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
"""
RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), maths.elementwise),
    **dict.fromkeys(_REDUCTIONS.split(), maths.reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), maths.arg),
    **dict.fromkeys(("Softmax", "LogSoftmax"), maths.along),
    **dict.fromkeys(("AveragePool", "MaxPool"), maths.pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), maths.global_pool),
    **dict.fromkeys(("Conv", "ConvTranspose"), maths.conv),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), maths.batch_norm),
    **dict.fromkeys(("LSTM", "GRU"), maths.recurrent),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), maths.depth_to_space),
    "Cast": shapes.cast,
    "Concat": shapes.concat,
    "ConstantOfShape": shapes.constant_of_shape,
    "CumSum": maths.cumsum,
    "DequantizeLinear": maths.dequantize,
    "Einsum": maths.einsum,
    "Expand": shapes.expand,
    "Flatten": shapes.flatten,
    "Gather": picks.gather,
    "GatherElements": picks.gather_elements,
    "Gemm": maths.gemm,
    "Identity": shapes.identity,
    "LayerNormalization": maths.layer_norm,
    "MatMul": maths.matmul,
    "Mul": shapes.times,
    "OneHot": maths.one_hot,
    "Pad": shapes.pad,
    "Range": shapes.value_range,
    "Reshape": shapes.reshape,
    "Resize": stretching.resize,
    "ScatterElements": picks.scatter_elements,
    "Shape": shapes.shape,
    "Size": shapes.size,
    "Slice": shapes.piece,
    "Split": shapes.split,
    "Squeeze": shapes.squeeze,
    "Tile": stretching.tile,
    "TopK": maths.top,
    "Transpose": shapes.transpose,
    "Trilu": maths.triangle,
    "Unsqueeze": shapes.unsqueeze,
    "Where": shapes.where,
}


def follow(graph: Graph, given: Mapping[str, Value], *, what: str) -> dict[str, Value]:
    """What is known of each output of a graph; BadArtifact for one that is not in order."""
    try:
        return _Walk(graph).run(graph, given)
    except (IndexError, KeyError, ValueError, ZeroDivisionError) as err:
        raise BadArtifact(f"{what} cannot be followed ({type(err).__name__}: {err}); build it again") from err


def follow_all(graph: Graph, given: Mapping[str, Value], *, what: str) -> dict[str, Value]:
    """What is known of each value of a graph, not only of its outputs."""
    try:
        return _Walk(graph).walk(graph, given)
    except (IndexError, KeyError, ValueError, ZeroDivisionError) as err:
        raise BadArtifact(f"{what} cannot be followed ({type(err).__name__}: {err}); build it again") from err


class _Walk:
    """One pass over a graph and those inside it."""

    def __init__(self, graph: Graph) -> None:
        tensors = {tensor.name: tensor for tensor in graph.tensors}
        made_by = {}
        for node in graph.nodes:
            made_by.update(dict.fromkeys(node.outputs, node))
            held = node.attributes.get("value")
            if node.operator == "Constant" and isinstance(held, Tensor):
                tensors[node.outputs[0]] = held
        self._made_by = made_by
        self._masks = Masks(made_by, tensors)
        # Names inside a Scan may be those of other values outside.
        self._is_outermost = True

    def run(self, graph: Graph, given: Mapping[str, Value]) -> dict[str, Value]:
        """The outputs of a graph whose inputs, and what it sees from outside, are given."""
        known = self.walk(graph, given)
        return {name: known[name] for name in graph.outputs}

    def walk(self, graph: Graph, given: Mapping[str, Value]) -> dict[str, Value]:
        """All values of such a graph."""
        known = {**given, "": Value(Kind.FIXED, ())}
        for tensor in graph.tensors:
            _put(known, tensor.name, _of_tensor(tensor))
        for node in graph.nodes:
            made = self._step(node, [known[name] for name in node.inputs], known)
            for name, value in zip(node.outputs, made, strict=False):
                if name:
                    _put(known, name, value)
        return known

    def _step(self, node: Node, inputs: list[Value], known: Mapping[str, Value]) -> list[Value]:
        if node.operator == "Constant":
            return [_constant(node)]
        if node.operator == "Scan":
            return self._scan(node, inputs, known)
        if node.operator == "Mul" and {value.kind for value in inputs} == {Kind.ROWS, Kind.PLACED}:
            return [self._masked(node, inputs)]
        if node.operator == "Mod" and inputs[0].kind == Kind.SINGLE:
            return [self._own_places(node, inputs, known)]
        rule = RULES.get(node.operator)
        if rule is None:
            return [spoilt(inputs, f"{node.operator} is not followed")] * len(node.outputs)
        made = rule(node, inputs)
        return made + [spoilt(inputs, node.operator)] * (len(node.outputs) - len(made))

    def _masked(self, node: Node, inputs: Sequence[Value]) -> Value:
        """Samples times a mask by place, which only dropout may have."""
        mask = next(at for at, value in enumerate(inputs) if value.kind == Kind.PLACED)
        if self._is_outermost and inputs[0].dims == inputs[1].dims and self._masks.is_dropout(node.inputs[mask]):
            return inputs[1 - mask]
        return spoilt(inputs, "Mul picks samples by their place")

    def _own_places(self, node: Node, inputs: Sequence[Value], known: Mapping[str, Value]) -> Value:
        """Where MaxPool found its maxima in the whole batch, modulo the entries of a sample: places in the sample."""
        pool, name = self._made_by.get(node.inputs[0]), node.inputs[0]
        if pool is not None and self._is_outermost and pool.operator == "MaxPool" and name in pool.outputs[1:]:
            pooled, picked = known[pool.inputs[0]], known[pool.outputs[0]]
            entries = shapes.fixed_numbers(inputs[1])
            if picked.kind == Kind.ROWS and pooled.rows_axis() == 0 and entries == (product((pooled.dims or ())[1:]),):
                return Value(Kind.ROWS, picked.dims)
        return spoilt(inputs, "Mod")

    def _scan(self, node: Node, inputs: Sequence[Value], known: Mapping[str, Value]) -> list[Value]:
        """The body once for each entry along an axis that is not over samples, until its state tells no more news."""
        body, count = node.attributes.get("body"), shapes.whole(node, "num_scan_inputs", 0)
        states, scanned = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
        axes = shapes.ints(node, "scan_input_axes", [0] * count)
        lost = [spoilt(inputs, "Scan along the samples")] * len(node.outputs)
        if not isinstance(body, Graph) or any(value.dims is None for value in scanned):
            return lost
        entries, lengths = [], []
        for value, axis in zip(scanned, axes, strict=True):
            dims = list(value.dims or ())
            lengths.append(dims.pop(axis % len(dims)))
            entries.append(value._replace(dims=tuple(dims), numbers=None))
        if any(isinstance(length, Rows) for length in lengths):
            return lost
        for _ in range(_ROUNDS):
            made = self._round(body, [*states, *entries], known)
            joined = [_joined(old, new) for old, new in zip(states, made, strict=False)]
            if joined == states:
                return [*states, *_stacked(node, made[len(states) :], lengths[0])]
            states = joined
        return lost

    def _round(self, body: Graph, given: Sequence[Value], known: Mapping[str, Value]) -> list[Value]:
        inside = dict(known)
        for name, value in zip(body.inputs, given, strict=True):
            _put(inside, name, value)
        outermost, self._is_outermost = self._is_outermost, False
        made = self.run(body, inside)
        self._is_outermost = outermost
        return [made[name] for name in body.outputs]


def _put(known: dict[str, Value], name: str, value: Value) -> None:
    if name in known:
        raise ValueError(f"{name!r} is made twice")
    known[name] = value


def _joined(old: Value, new: Value) -> Value:
    """What a state is if it may be either."""
    if old.dims is None or old.dims != new.dims:
        return spoilt([old, new], "Scan changes the shape of its state")
    return with_dims([old, new], old.dims, "Scan")


def _stacked(node: Node, made: Sequence[Value], length: object) -> list[Value]:
    """Results of a Scan's rounds, one behind the other along an axis of their own."""
    axes = shapes.ints(node, "scan_output_axes", [0] * len(made))
    found = []
    for value, axis in zip(made, axes, strict=True):
        if value.dims is None:
            found.append(value)
            continue
        dims = list(value.dims)
        dims.insert(axis % (len(dims) + 1), length if isinstance(length, int) else None)
        found.append(value._replace(dims=tuple(dims), numbers=None))
    return found


def _of_tensor(tensor: Tensor) -> Value:
    return Value(Kind.FIXED, tensor.dims, tensor.numbers, tensor.floats)


def _constant(node: Node) -> Value:
    held = node.attributes.get("value")
    if isinstance(held, Tensor):
        return _of_tensor(held)
    if "value_int" in node.attributes:
        return Value(Kind.FIXED, (), (shapes.whole(node, "value_int", 0),))
    if "value_ints" in node.attributes:
        numbers = shapes.ints(node, "value_ints")
        return Value(Kind.FIXED, (len(numbers),), numbers)
    return Value(Kind.FIXED)
