"""A mutable ONNX graph under construction: nodes, constants, inputs, outputs and what is known of every value."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from fedwright.protocol.artifact import SUPPLIED
from fedwright.protocol.errors import BuildError

Array = NDArray[Any]
Shape = tuple[int, ...]

FLOAT: np.dtype[Any] = np.dtype(np.float32)
OPSET = 17
IR_VERSION = 8
_ATTRIBUTES_WITH_GRAPHS = ("body", "then_branch", "else_branch")


@dataclass
class Node:
    """One operator call; `module` is the path of the torch module it came from ("" = none).

    stops: no gradient goes back through it.
    """

    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    module: str = ""
    stops: bool = False


@dataclass(frozen=True)
class Value:
    """A named graph input or output; -1 in the shape is a free dimension, called `free`."""

    name: str
    shape: Shape
    dtype: np.dtype[Any] = FLOAT
    free: str = "batch"


@dataclass(frozen=True)
class Composite:
    """A group of nodes differentiated as one: gradient of the output -> gradient of each named input."""

    inputs: tuple[str, ...]
    gradient: Callable[[Any, str], list[str | None]]


class Graph:
    """Nodes in execution order over named values; every method keeps names unique.

    uses: how often each value was read when lowering began. recompute: how to make a value again in the backward
    pass, for values that cost more to keep than to make.
    """

    def __init__(self, inputs: Sequence[Value] = ()) -> None:
        self.nodes: list[Node] = []
        self.initializers: dict[str, Array] = {}
        self.external: dict[str, Value] = {}
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.composites: dict[str, Composite] = {}
        self.recompute: dict[str, Callable[[Any], str]] = {}
        self.uses: Counter[str] = Counter()
        self.module = ""
        self._shapes: dict[str, Shape] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._names: set[str] = set()
        self._constants: dict[tuple[str, Shape, bytes], str] = {}
        self._counts: dict[str, int] = {}
        for value in inputs:
            self.add_input(value)

    def add_input(self, value: Value) -> str:
        """Declare a graph input."""
        self.inputs.append(value)
        self.record(value.name, value.shape, value.dtype)
        return value.name

    def drop_input(self, name: str) -> None:
        """Take back a graph input that nothing reads."""
        self.inputs = [value for value in self.inputs if value.name != name]
        del self._shapes[name], self._dtypes[name]

    def fresh(self, hint: str) -> str:
        """A name that no value has."""
        count = self._counts.get(hint, 0)
        while (name := f"{hint}_{count}") in self._names:
            count += 1
        self._counts[hint] = count + 1
        self._names.add(name)
        return name

    def record(self, name: str, shape: Shape | None = None, dtype: Any = None) -> None:
        """Remember the shape and type of a value."""
        self._names.add(name)
        if shape is not None:
            self._shapes[name] = tuple(shape)
        if dtype is not None:
            self._dtypes[name] = np.dtype(dtype)

    @overload
    def op(
        self,
        op_type: str,
        *inputs: str,
        outputs: Literal[1] = 1,
        shape: Shape | None = None,
        dtype: Any = None,
        **attrs: Any,
    ) -> str: ...

    @overload
    def op(self, op_type: str, *inputs: str, outputs: int, **attrs: Any) -> tuple[str, ...]: ...

    def op(
        self,
        op_type: str,
        *inputs: str,
        outputs: int = 1,
        shape: Shape | None = None,
        dtype: Any = None,
        **attrs: Any,
    ) -> str | tuple[str, ...]:
        """Append a node and return its fresh output name(s); "" stands for an absent optional input."""
        names = tuple(self.fresh(op_type.lower()) for _ in range(outputs))
        self.nodes.append(Node(op_type, list(inputs), list(names), attrs, name=f"n/{names[0]}", module=self.module))
        for name in names:
            self.record(name, shape, dtype)
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, hint: str = "c") -> str:
        """The name of an initializer with this value; equal values share one."""
        array = np.array(value, copy=None, order="C")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.fresh(hint)
            self._constants[key] = name
            self.initializers[name] = array
            self.record(name, array.shape, array.dtype)
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """An int64 vector constant (axes, shapes, pads)."""
        return self.constant(np.array(values, dtype=np.int64), "i")

    def scalar(self, value: float) -> str:
        """A float32 scalar constant."""
        return self.constant(np.array(value, dtype=np.float32), "s")

    def const_value(self, name: str) -> Array | None:
        """The value of a constant, None for anything computed or supplied."""
        return self.initializers.get(name)

    def knows(self, name: str) -> bool:
        """Is the shape of this value known?"""
        return name in self._shapes

    def shape(self, name: str) -> Shape:
        """Shape of a value; -1 = batch dimension."""
        if name not in self._shapes:
            raise BuildError(f"the shape of value {name} is not known; give shape= where it is made")
        return self._shapes[name]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Element type of a value (float32 when nobody said otherwise)."""
        return self._dtypes.get(name, FLOAT)

    def producers(self) -> dict[str, Node]:
        """The node that makes each value."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each value."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                readers.setdefault(name, []).append(node)
        return readers

    def rename_output(self, new: str, old: str) -> None:
        """Give the just computed value `new` the name `old`, whose node it replaces."""
        for node in reversed(self.nodes):
            if new in node.outputs:
                node.outputs = [old if name == new else name for name in node.outputs]
                break
        for node in self.nodes:
            if new in node.inputs:
                node.inputs = [old if name == new else name for name in node.inputs]

    def prune(self) -> None:
        """Drop nodes and constants that no output depends on."""
        live = {value.name for value in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if live.intersection(node.outputs):
                kept.append(node)
                live.update(node.inputs)
                live.update(outer_names(node))
        self.nodes = kept[::-1]
        self.initializers = {name: array for name, array in self.initializers.items() if name in live}
        self._constants = {key: name for key, name in self._constants.items() if name in live}

    def merge(self, other: "Graph", prefix: str, same: Mapping[str, str]) -> dict[str, str]:
        """Append another graph's nodes with prefixed names; `same` maps its inputs to values of this one.

        Returns the new name of every value of the other graph.
        """
        names = dict(same)
        for name, array in other.initializers.items():
            names[name] = self.constant(array)
        for name in other._names:
            if name and name not in names:
                names[name] = prefix + name
                self.record(prefix + name, other._shapes.get(name), other._dtypes.get(name))
        for node in other.nodes:
            inputs = [names.get(name, name) for name in node.inputs]
            outputs = [names.get(name, name) for name in node.outputs]
            self.nodes.append(Node(node.op, inputs, outputs, node.attrs, prefix + node.name, node.module))
        return names

    def to_model(self, *, opset: int = OPSET, ir_version: int = IR_VERSION) -> onnx.ModelProto:
        """The graph as an ONNX model, with equal bytes for equal graphs."""
        nodes = [
            helper.make_node(node.op, node.inputs, node.outputs, name=node.name, **node.attrs) for node in self.nodes
        ]
        constants = [numpy_helper.from_array(array, name) for name, array in self.initializers.items()]
        constants += [_external(value) for value in self.external.values()]
        graph = helper.make_graph(
            nodes,
            "fedwright",
            [_value_info(value) for value in self.inputs],
            [_value_info(value) for value in self.outputs],
            constants,
        )
        return helper.make_model(
            graph,
            producer_name="fedwright",
            ir_version=ir_version,
            opset_imports=[helper.make_opsetid("", opset)],
        )


def outer_names(node: Node) -> Iterable[str]:
    """Values of the outer graph that a node's subgraphs read."""
    for key in _ATTRIBUTES_WITH_GRAPHS:
        body = node.attrs.get(key)
        if body is not None:
            for inner in body.node:
                yield from inner.input


def _value_info(value: Value) -> onnx.ValueInfoProto:
    dims: list[int | str | None] = [value.free if dim == -1 else dim for dim in value.shape]
    return helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(value.dtype), dims)


def _external(value: Value) -> onnx.TensorProto:
    """An initializer without data: the session gets it by name when it is made."""
    tensor = onnx.TensorProto()
    tensor.name = value.name
    tensor.data_type = helper.np_dtype_to_tensor_dtype(value.dtype)
    tensor.dims.extend(value.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", SUPPLIED
    return tensor
