"""How large tensors and how long loops a graph asks for, as far as its file and a batch size say.

Shapes are followed from inputs and constants through the operators that graphs compute shapes with. What depends on
values that only a run knows is not followed; what runs is held by limits of its process.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Longer lists of numbers are no shapes.
_FEW = 64
_MOST = 2**63
# Which input holds the shape, or the number of copies along each axis, of what an operator makes.
_SHAPE_INPUT = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "Reshape": 1}
# The result has the shape that all inputs together are stretched to.
_ELEMENTWISE = """
Abs Add And Cast Ceil Clip Div Equal Erf Exp Floor Greater GreaterOrEqual Identity Less LessOrEqual Log LogSoftmax Max
Min Mod Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid Sign Softmax Sqrt Sub Sum Tanh Where Xor
"""
_STRETCHED = frozenset(_ELEMENTWISE.split())
_SAME_NUMBERS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_ONE_NUMBER: dict[str, Callable[[Sequence[int]], int]] = {
    "ReduceMax": max,
    "ReduceMin": min,
    "ReduceProd": math.prod,
    "ReduceSum": sum,
}


def _divided(left: int, right: int) -> int:
    """As the processor divides: towards zero. ZeroDivisionError is the caller's."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_PAIRS: dict[str, Callable[[int, int], int]] = {
    "Add": lambda left, right: left + right,
    "Sub": lambda left, right: left - right,
    "Mul": lambda left, right: left * right,
    "Div": _divided,
    "Max": max,
    "Min": min,
    "Mod": lambda left, right: left % right,
}

Numbers = tuple[int, ...]


class Bounds:
    """What is known of the tensors of one graph; trips: how often it is run for one run of the whole."""

    def __init__(self, trips: int = 1) -> None:
        self.trips = trips
        self._numbers: dict[str, Numbers] = {}
        self._shapes: dict[str, Numbers] = {}

    def note(self, name: str, dims: Sequence[int], numbers: Numbers | None) -> None:
        """A tensor that stands in the file, or an input of known size."""
        self._shapes[name] = tuple(dims)
        if numbers is not None:
            self._numbers[name] = numbers

    def entries(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, Any]
    ) -> int:
        """So many entries the operator's first result has; 0 when nothing is known."""
        if not outputs:
            return 0
        numbers = self._computed(operator, inputs, attributes)
        if numbers is not None and len(numbers) <= _FEW and all(abs(number) < _MOST for number in numbers):
            self._numbers[outputs[0]] = numbers
        shape = self._shape(operator, inputs, attributes)
        if shape is None:
            return 0
        self._shapes[outputs[0]] = shape
        return math.prod(shape)

    def inside(self, inputs: Sequence[str]) -> "Bounds":
        """The bounds of a Scan's body: it sees what is outside, and runs once for each entry of what is scanned."""
        known = [self._shapes[name] for name in inputs if name in self._shapes]
        body = Bounds(self.trips * max((shape[0] for shape in known if shape), default=1))
        body._numbers, body._shapes = dict(self._numbers), dict(self._shapes)
        return body

    def _computed(self, operator: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> Numbers | None:
        """The whole numbers that an operator makes of known ones, in their order."""
        if operator in ("Shape", "Size"):
            shape = self._shapes.get(inputs[0]) if inputs else None
            if shape is None:
                return None
            if operator == "Size":
                return (math.prod(shape),)
            return shape[attributes.get("start", 0) : attributes.get("end", len(shape))]
        given = [self._numbers.get(name) for name in inputs]
        known = [numbers for numbers in given if numbers is not None]
        if not known or given[0] is None:
            return None
        if operator in _SAME_NUMBERS:
            return known[0]
        if operator in _ONE_NUMBER and len(self._shapes.get(inputs[0], (0,))) <= 1:
            return (_ONE_NUMBER[operator](known[0]),) if known[0] else None
        if operator in ("Neg", "Abs"):
            return tuple(-number if operator == "Neg" else abs(number) for number in known[0])
        if len(known) < len(given):
            return None
        return _combined(operator, known)

    def _shape(self, operator: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> Numbers | None:
        given = [self._shapes.get(name) for name in inputs if name]
        known = [shape for shape in given if shape is not None]
        at = _SHAPE_INPUT.get(operator)
        if at is not None and at < len(inputs):
            return self._shaped(operator, self._numbers.get(inputs[at]), given[0])
        if operator == "Range":
            return self._range(inputs)
        if operator == "DequantizeLinear":
            return given[0]
        if operator in _STRETCHED and known and len(known) == len(given):
            return _stretched(known)
        if operator in ("MatMul", "Gemm") and len(known) == len(given) >= 2:
            return _product(known[0], known[1], attributes)
        return None

    def _shaped(self, operator: str, wanted: Numbers | None, given: Numbers | None) -> Numbers | None:
        """What an operator makes that is told a shape or numbers of copies."""
        if wanted is None:
            return None
        if operator == "Tile":
            sizes = given if given is not None and len(given) == len(wanted) else (1,) * len(wanted)
            return tuple(size * max(0, copies) for size, copies in zip(sizes, wanted, strict=True))
        if operator == "Reshape":
            return _reshaped(wanted, given)
        known = tuple(max(1 if operator == "Expand" else 0, size) for size in wanted)
        return known if operator == "ConstantOfShape" or given is None else _stretched([known, given])

    def _range(self, inputs: Sequence[str]) -> Numbers | None:
        ends = [self._numbers.get(name, ()) for name in inputs]
        if len(ends) != 3 or any(len(end) != 1 for end in ends) or ends[2] == (0,):
            return None
        return (max(0, -((ends[0][0] - ends[1][0]) // ends[2][0])),)


def _combined(operator: str, known: Sequence[Numbers]) -> Numbers | None:
    """What an operator makes of several lists of numbers that are all known."""
    if operator == "Concat":
        return tuple(number for numbers in known for number in numbers)
    if operator == "Gather" and len(known) == 2 and all(-len(known[0]) <= at < len(known[0]) for at in known[1]):
        return tuple(known[0][at] for at in known[1])
    if operator == "Slice" and len(known) >= 3 and all(len(numbers) == 1 for numbers in known[1:]) and known[0]:
        step = known[4][0] if len(known) > 4 else 1
        return known[0][known[1][0] : known[2][0] : step] if step else None
    pair = _PAIRS.get(operator)
    if pair is None or len(known) != 2:
        return None
    length = max(len(numbers) for numbers in known)
    if any(len(numbers) not in (1, length) for numbers in known):
        return None
    left, right = (numbers * length if len(numbers) == 1 else numbers for numbers in known)
    if operator in ("Div", "Mod") and 0 in right:
        return None
    return tuple(pair(one, other) for one, other in zip(left, right, strict=True))


def _stretched(shapes: Sequence[Numbers]) -> Numbers | None:
    """The shape that broadcasting gives; None when the shapes do not fit, which a session says better."""
    rank = max(len(shape) for shape in shapes)
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    made = []
    for sizes in columns:
        larger = {size for size in sizes if size != 1} or {1}
        if len(larger) > 1:
            return None
        made.append(larger.pop())
    return tuple(made)


def _product(left: Numbers, right: Numbers, attributes: Mapping[str, Any]) -> Numbers | None:
    """The shape of a product of matrices."""
    if len(left) < 2 or len(right) < 2:
        return None
    rows = left[-1] if attributes.get("transA") else left[-2]
    columns = right[-2] if attributes.get("transB") else right[-1]
    outer = _stretched([left[:-2], right[:-2]])
    return None if outer is None else (*outer, rows, columns)


def _reshaped(wanted: Numbers, given: Numbers | None) -> Numbers | None:
    """A shape in which 0 stands for the size that was there and -1 for what is left."""
    if given is None:
        return None if min(wanted, default=1) <= 0 else wanted
    if any(size == 0 and at >= len(given) for at, size in enumerate(wanted)) or wanted.count(-1) > 1:
        return None
    sizes = [given[at] if size == 0 else size for at, size in enumerate(wanted)]
    fixed = math.prod(size for size in sizes if size != -1)
    if -1 in sizes:
        if fixed <= 0 or math.prod(given) % fixed:
            return None
        sizes[sizes.index(-1)] = math.prod(given) // fixed
    return tuple(sizes) if min(sizes, default=0) >= 0 else None
