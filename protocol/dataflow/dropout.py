"""Knows the masks of dropout that training graphs draw from the step's seed and each entry's place.

A mask tells samples apart by their place, which is refused of anything else. These masks keep entries that a hash
picks, with constants that are compared here one by one, so that nobody can write another mask in their form.
"""

from collections.abc import Mapping

from fedwright.protocol.onnx_outline import Node, Tensor

_PRIME = 2**31 - 1
_HALF = 2**30
_FACTORS = (1_103_515_245, 1_597_334_677, 747_796_405, 1_283_640_077)
# Of entries beyond this share dropped, few are left to hide among.
_MOST_DROPPED = 0.9


class Masks:
    """Looks at how a value of a graph was made."""

    def __init__(self, made_by: Mapping[str, Node], tensors: Mapping[str, Tensor]) -> None:
        self._made_by = made_by
        self._tensors = tensors

    def is_dropout(self, name: str) -> bool:
        """Whether a value is a mask of dropout, times a number."""
        scaled = self._node(name, "Mul")
        mask = None if scaled is None else self._node(scaled.inputs[0], "Cast")
        kept = None if mask is None else self._node(mask.inputs[0], "GreaterOrEqual")
        if scaled is None or kept is None or not self._is_scalar(scaled.inputs[1]):
            return False
        least = self._number(kept.inputs[1])
        drawn = self._square_of(kept.inputs[0])
        return least is not None and least <= _MOST_DROPPED * _PRIME and drawn is not None and self._is_drawn(drawn)

    def _is_drawn(self, name: str) -> bool:
        """A hash of the row plus one of the place in it, or a hash of the place in all."""
        both = self._node(name, "Add")
        parts = [name] if both is None else list(both.inputs)
        hashes = [self._node(part, "Reshape") for part in parts]
        return all(node is not None and self._is_hash(node.inputs[0]) for node in hashes)

    def _is_hash(self, name: str) -> bool:
        value: str | None = self._reduced(name, _HALF)
        for factor in reversed(_FACTORS[1:3]):
            value = self._linear(value, factor, factor)
            value = None if value is None else self._square_of(value)
            value = None if value is None else self._reduced(value, _PRIME)
        start = None if value is None else self._node(value, "Add")
        index = None if start is None else self._node(start.inputs[0], "Mul")
        counted = None if index is None else self._node(index.inputs[0], "Range")
        if start is None or index is None or counted is None or self._number(index.inputs[1]) != _FACTORS[1]:
            return False
        if self._number(counted.inputs[0]) != 0 or self._number(counted.inputs[2]) != 1:
            return False
        begun = self._square_of(start.inputs[1])
        return begun is not None and self._is_start(self._reduced(begun, _PRIME))

    def _is_start(self, name: str | None) -> bool:
        """A number that depends on the seed, and on which dropout of the graph this is."""
        if name is None:
            return False
        if self._number(name) is not None:
            return True
        mixed = self._node(name, "Add")
        times = None if mixed is None else self._node(mixed.inputs[0], "Mul")
        seed = None if times is None else self._reduced(times.inputs[0], _PRIME)
        known = times is not None and self._number(times.inputs[1]) == _FACTORS[0]
        return known and seed == "seed" and mixed is not None and self._number(mixed.inputs[1]) is not None

    def _linear(self, name: str | None, factor: int, offset: int) -> str | None:
        added = None if name is None else self._node(name, "Add")
        times = None if added is None else self._node(added.inputs[0], "Mul")
        if added is None or times is None:
            return None
        right = self._number(added.inputs[1]) == offset and self._number(times.inputs[1]) == factor
        return times.inputs[0] if right else None

    def _square_of(self, name: str) -> str | None:
        """v, where the name is v^2 mod the prime."""
        squared = self._reduced(name, _PRIME)
        node = None if squared is None else self._node(squared, "Mul")
        return node.inputs[0] if node is not None and node.inputs[0] == node.inputs[1] else None

    def _reduced(self, name: str, modulus: int) -> str | None:
        node = self._node(name, "Mod")
        return node.inputs[0] if node is not None and self._number(node.inputs[1]) == modulus else None

    def _node(self, name: str, operator: str) -> Node | None:
        node = self._made_by.get(name)
        return node if node is not None and node.operator == operator else None

    def _number(self, name: str) -> int | None:
        tensor = self._tensors.get(name)
        return tensor.numbers[0] if tensor is not None and tensor.numbers and len(tensor.numbers) == 1 else None

    def _is_scalar(self, name: str) -> bool:
        tensor = self._tensors.get(name)
        return tensor is not None and tensor.dims in ((), (1,))
