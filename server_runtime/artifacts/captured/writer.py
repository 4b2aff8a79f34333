"""What writes one operator of a captured program: values with what torch knows of them, and the graph they go to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx import helper

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.symbolics.registry import DOMAIN, SYMBOLICS, Uncaptured

Form = Callable[..., Any]
FORMS: dict[str, Form] = {}
# Attributes end in what they are: a whole number, a fraction, a word or a tensor.
_KINDS = ("_i", "_f", "_s", "_t")
NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


def form(*names: str) -> Callable[[Form], Form]:
    """Register how these operators (`conv2d`, without overload) are written."""

    def register(function: Form) -> Form:
        FORMS.update(dict.fromkeys(names, function))
        return function

    return register


def form_of(name: str) -> Form | None:
    """How an operator is written: in this package's own way, or as the tracing exporter is told."""
    return FORMS.get(name) or SYMBOLICS.get(f"aten::{name}")


@dataclass(frozen=True)
class Written:
    """A value of the graph; sizes and dtype as torch says them, for values of the program (None = free size)."""

    name: str
    sizes: tuple[int | None, ...] | None = None
    dtype: torch.dtype = torch.float32


class Writer:
    """Appends operators to a graph.

    made: what torch says of the results of the operator that is being written.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made: list[Written] = []

    @property
    def result(self) -> Written:
        """What torch says of the first result."""
        return self.made[0]

    def op(self, kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """One node; names of attributes end in _i, _f, _s or _t."""
        if kind == "Constant":
            return self.constant(attributes["value_t"])
        names = ["" if value is None else value.name for value in inputs]
        attrs = {key[:-2]: value for key, value in attributes.items() if key.endswith(_KINDS)}
        if kind.startswith(f"{DOMAIN}::"):
            made = [self.graph.op("Identity", *names)]
            self.graph.nodes[-1].stops = True
        else:
            self._append(kind, names, attrs, outputs)
            made = self.graph.nodes[-1].outputs
        written = [Written(name) for name in made]
        return written[0] if outputs == 1 else tuple(written)

    def _append(self, kind: str, names: list[str], attrs: dict[str, Any], outputs: int) -> None:
        fresh = [self.graph.fresh(kind.lower()) for _ in range(outputs)]
        self.graph.nodes.append(Node(kind, names, fresh, attrs, name=fresh[0], module=self.graph.module))

    def constant(self, value: Any) -> Written:
        """A constant of the type of the tensor or array."""
        array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        name = self.graph.constant(array)
        return Written(name, tuple(array.shape), torch.from_numpy(np.empty(0, array.dtype)).dtype)

    def ints(self, *values: int) -> Written:
        """A vector of whole numbers."""
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: Any, dtype: torch.dtype) -> Written:
        """One number of this type."""
        return self.constant(np.array(value, NUMPY[dtype]))

    def cast(self, value: Any, dtype: torch.dtype) -> Written:
        """A value, or a number of Python, in this type."""
        if not isinstance(value, Written):
            return self.scalar(value, dtype)
        if value.dtype == dtype:
            return value
        made = self.op("Cast", value, to_i=int(helper.np_dtype_to_tensor_dtype(np.dtype(NUMPY[dtype]))))
        return Written(made.name, value.sizes, dtype)

    def vector(self, parts: Sequence[Any]) -> Written:
        """Whole numbers as a vector; some of them may be computed."""
        if not any(isinstance(part, Written) for part in parts):
            return self.ints(*(int(part) for part in parts))
        columns = [part if isinstance(part, Written) else self.ints(int(part)) for part in parts]
        made = columns[0] if len(columns) == 1 else self.op("Concat", *columns, axis_i=0)
        return Written(made.name, (len(columns),), torch.int64)

    def shape_of(self, like: Written, parts: Sequence[Any]) -> Written:
        """The shape that a reshape asks for: -1 where one size is free, computed where several are."""
        sizes = known(like)
        if sizes.count(None) <= 1 and 0 not in sizes:
            return self.ints(*(-1 if size is None else size for size in sizes))
        return self.vector(parts)

    def reshaped(self, value: Written, *shape: int) -> Written:
        """The same entries in another shape."""
        made = self.op("Reshape", value, self.ints(*shape))
        return Written(made.name, None, value.dtype)


def known(value: Written) -> tuple[int | None, ...]:
    """The sizes of a value of the program."""
    if value.sizes is None:
        raise Uncaptured("the rank of a value is not known")
    return value.sizes


def fixed(value: Written, *axes: int) -> list[int]:
    """The sizes along these axes, which must not be free."""
    sizes = [known(value)[axis] for axis in axes]
    found = [size for size in sizes if size is not None]
    if len(found) < len(sizes):
        raise Uncaptured("an operator over a free size")
    return found


def rank(value: Written) -> int:
    """How many axes a value has."""
    return len(known(value))


def axes_of(value: Written, dims: Any) -> list[int]:
    """Axes counted from the front; all where none is named."""
    count = rank(value)
    if dims is None or dims == []:
        return list(range(count))
    return [axis % max(count, 1) for axis in ([dims] if isinstance(dims, int) else dims)]


def common(*operands: Any) -> torch.dtype:
    """The type in which torch compares or adds these."""
    stand_ins = [
        torch.empty([1] * len(value.sizes or ()), dtype=value.dtype, device="meta")
        if isinstance(value, Written)
        else value
        for value in operands
    ]
    return torch.result_type(*stand_ins)
