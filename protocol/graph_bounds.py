"""How large tensors and how long loops a graph asks for, as far as that stands in its file.

Shapes that only a run makes are not followed; what runs is held by limits of its process.
"""

import math
from collections.abc import Sequence

# Which input holds the shape, or the number of copies along each axis, of what an operator makes.
_SHAPE_INPUT = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1}
# The result is as long as the longest input.
_LONGEST = "Abs Add Cast Div Exp Identity Max Min Mul Neg Relu Sigmoid Sub Tanh Where"
_KEEPS_LENGTH = frozenset(_LONGEST.split())


class Bounds:
    """What is known of the tensors of one graph; trips: how often it is run for one run of the whole."""

    def __init__(self, trips: int = 1) -> None:
        self.trips = trips
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._lengths: dict[str, int] = {}

    def note(self, name: str, dims: Sequence[int], numbers: tuple[int, ...] | None) -> None:
        """A tensor that stands in the file."""
        self._lengths[name] = dims[0] if dims else 1
        if numbers is not None:
            self._numbers[name] = numbers

    def entries(self, operator: str, inputs: Sequence[str], outputs: Sequence[str]) -> int:
        """At least so many entries the operator's result has; 0 when nothing is known."""
        if operator in _KEEPS_LENGTH and outputs:
            self._lengths[outputs[0]] = max((self._lengths.get(name, 0) for name in inputs), default=0)
        at = _SHAPE_INPUT.get(operator, len(inputs))
        shape = self._numbers.get(inputs[at]) if at < len(inputs) else None
        if operator == "Range":
            shape = self._range(inputs)
        if shape is None or not outputs:
            return 0
        known = [max(1, size) for size in shape]
        self._lengths[outputs[0]] = known[0] if known else 1
        return math.prod(known)

    def inside(self, inputs: Sequence[str]) -> "Bounds":
        """The bounds of a Scan's body: it sees what is outside, and runs once for each entry of what is scanned."""
        body = Bounds(self.trips * max((self._lengths.get(name, 1) for name in inputs), default=1))
        body._numbers, body._lengths = dict(self._numbers), dict(self._lengths)
        return body

    def _range(self, inputs: Sequence[str]) -> tuple[int, ...] | None:
        ends = [self._numbers.get(name, ()) for name in inputs]
        if len(ends) != 3 or any(len(end) != 1 for end in ends) or ends[2] == (0,):
            return None
        return (max(0, -((ends[0][0] - ends[1][0]) // ends[2][0])),)
