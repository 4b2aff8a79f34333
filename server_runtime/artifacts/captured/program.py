"""torch.nn.Module -> Graph by torch.export: what it captured, operator by operator.

torch.export keeps operators as users call them and changes values in place. A value that is changed while parts or
views of it are read later is left to the tracing exporter, as is every operator that has no form.
"""

import logging
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Value
from fedwright.server_runtime.artifacts.captured.writer import Writer, Written, form_of
from fedwright.server_runtime.artifacts.module_tensors import shared_names, state_tensors
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured, plainly
from fedwright.server_runtime.artifacts.trial import READS, Read

# What torch.export and the operators' own code raise about a module that they cannot follow.
_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, NotImplementedError)
# Operators that may return their first argument, or a part of it, without saying so.
_MAY_ALIAS = frozenset({"reshape", "flatten", "contiguous", "to", "unflatten", "chunk", "type_as", "reshape_as"})
_SIZES: dict[Any, str] = {operator.add: "Add", operator.sub: "Sub", operator.mul: "Mul", operator.floordiv: "Div"}


class Aliased(Uncaptured):
    """A value is changed in place of which parts or views are read later; tracing may get that wrong too."""


class _Replayed(TorchFunctionMode):
    """Answers what Python asks of tensors as a run of the module did, which said the same for other data."""

    def __init__(self, reads: Sequence[Read]) -> None:
        super().__init__()
        self.left = list(reads)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in READS:
            return func(*args, **(kwargs or {}))
        if not self.left or self.left[0].function is not func:
            raise Uncaptured("it asks other things of tensors than it did before")
        return self.left.pop(0).made


def captured(
    module: nn.Module,
    inputs: tuple[Value, ...],
    examples: tuple[torch.Tensor, ...],
    reads: Sequence[Read],
) -> Graph:
    """The graph of a module; Uncaptured if torch.export does not follow it or an operator has no form here.

    reads: what a run of the module asked of tensors.
    """
    try:
        program = _exported(module, inputs, examples, reads)
        return _Program(program, module, inputs).graph()
    except _ERRORS as err:
        said = (str(err).splitlines() or [type(err).__name__])[0][:300]
        raise Uncaptured(said) from err


def _exported(
    module: nn.Module, inputs: tuple[Value, ...], examples: tuple[torch.Tensor, ...], reads: Sequence[Read]
) -> "torch.export.ExportedProgram":
    free = tuple({i: torch.export.Dim.AUTO for i, size in enumerate(value.shape) if size == -1} for value in inputs)
    replayed = _Replayed(reads)
    with replayed, plainly(), _silent():
        program = torch.export.export(module, examples, dynamic_shapes=(free,) if _takes_all(module) else free)
    if replayed.left:
        raise Uncaptured("it asks less of tensors than it did before")
    return program


def _takes_all(module: nn.Module) -> bool:
    """Does forward take its inputs as *args?"""
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and code.co_argcount == 1 and bool(code.co_flags & 0x04)


@contextmanager
def _silent() -> Iterator[None]:
    """No notes of torch.export, which prints the whole program that it cannot follow."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class _Program:
    """A captured program on its way into a graph.

    `values`: what each node of the program is by now; `parts`: the storage that it is a part of; `same`: the node whose
    value it is, after a change in place.
    """

    def __init__(
        self,
        program: "torch.export.ExportedProgram",
        module: nn.Module,
        inputs: tuple[Value, ...],
    ) -> None:
        self._program, self._inputs, self._names = program, inputs, shared_names(module)
        self._weights = state_tensors(module)
        self._buffers = dict(module.named_buffers())
        self._graph = Graph(inputs)
        self._writer = Writer(self._graph)
        self._values: dict[fx.Node, Any] = {}
        self._parts: dict[fx.Node, fx.Node] = {}
        self._same: dict[fx.Node, fx.Node] = {}

    def graph(self) -> Graph:
        """The whole program."""
        graph = self._graph
        self._place()
        made = self._write(self._program.graph_module)
        for value in made:
            if not isinstance(value, Written):
                raise Uncaptured("it returns something that is no tensor")
            outputs = {item.name for item in graph.outputs} | {item.name for item in graph.inputs}
            name = self._writer.op("Identity", value).name if value.name in outputs else value.name
            graph.outputs.append(Value(name, ()))
        graph.prune()
        read = {name for node in graph.nodes for name in node.inputs} | {value.name for value in self._inputs}
        for name in [value.name for value in graph.inputs if value.name not in read]:
            graph.drop_input(name)
        return graph

    def _place(self) -> None:
        """Values for what the program is given: the batch, weights, statistics and constants."""
        batch = iter(self._inputs)
        held = {**self._program.constants, **self._buffers}
        nodes = {node.name: node for node in self._program.graph.nodes if node.op == "placeholder"}
        for spec in self._program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if spec.kind.name == "USER_INPUT":
                value = next(batch)
                self._check_free(node, value)
                self._values[node] = _as(node, value.name)
                continue
            name = self._names.get(spec.target or "", spec.target or "")
            if name in self._weights:
                if all(value.name != name for value in self._graph.inputs):
                    self._graph.add_input(Value(name, tuple(self._weights[name].shape)))
                self._values[node] = _as(node, name)
            elif isinstance(held.get(name), torch.Tensor):
                self._values[node] = self._writer.constant(held[name])
            else:
                raise Uncaptured(f"it reads {name}, which is no tensor")

    def _check_free(self, node: fx.Node, value: Value) -> None:
        """Raise Uncaptured where the program is for one number of samples only."""
        sizes = _sketch(node.meta["val"]).sizes or ()
        if any(size == -1 and own is not None for size, own in zip(value.shape, sizes, strict=True)):
            raise Uncaptured(f"it fixes a size of {value.name}")

    def _write(self, program: fx.GraphModule) -> list[Any]:
        """All nodes of a program or of one inside it; what it returns."""
        for node in program.graph.nodes:
            if node.op == "output":
                return [self._given(item) for item in _flat(node.args)]
            if node.op == "get_attr":
                self._values[node] = self._attribute(program, node)
            elif node.op == "call_function":
                self._graph.module = _module(node)
                self._values[node] = self._call(program, node)
        raise Uncaptured("it returns nothing")

    def _attribute(self, program: fx.GraphModule, node: fx.Node) -> Any:
        held: Any = program
        for part in str(node.target).split("."):
            held = getattr(held, part)
        return self._writer.constant(held) if isinstance(held, torch.Tensor) else held

    def _call(self, program: fx.GraphModule, node: fx.Node) -> Any:
        target: Any = node.target
        if target is operator.getitem:
            self._parts[node] = self._part(_argument(node, 0))
            return self._values[_argument(node, 0)][node.args[1]]
        if isinstance(target, torch._ops.OpOverload):
            return self._operator(node, target)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._inner(node)
        return self._size(node)

    def _inner(self, node: fx.Node) -> Any:
        """A program inside the program, run with or without gradients."""
        if str(node.target) != "wrap_with_set_grad_enabled":
            raise Uncaptured(f"{node.target} has no form")
        enabled, inner, *given = (self._given(item) for item in node.args)
        places = [item for item in inner.graph.nodes if item.op == "placeholder"]
        self._values.update(zip(places, given, strict=True))
        for place, item in zip(places, node.args[2:], strict=True):
            if isinstance(item, fx.Node):
                self._parts[place] = self._part(item)
        made = self._write(inner)
        if enabled:
            return made
        stop = form_of("detach")
        assert stop is not None
        return [
            Written(stop(self._writer, item).name, item.sizes, item.dtype)
            if isinstance(item, Written) and item.dtype.is_floating_point
            else item
            for item in made
        ]

    def _size(self, node: fx.Node) -> Any:
        """Arithmetic with sizes; what has no form fails where it is read."""
        kind = _SIZES.get(node.target)
        if kind is None or not node.users:
            return None
        left, right = (self._given(item) for item in node.args)
        columns = [item if isinstance(item, Written) else self._writer.ints(int(item)) for item in (left, right)]
        return Written(self._writer.op(kind, *columns).name, (1,), torch.int64)

    def _operator(self, node: fx.Node, target: Any) -> Any:
        schema = target._schema
        name = schema.name.partition("::")[2]
        changes = bool(schema.arguments) and _is_written(schema.arguments[0])
        if schema.name == "aten::sym_size":
            return self._free_size(node)
        if not node.users and not changes:
            return None
        form = form_of(name.removesuffix("_") if changes else name)
        if form is None or schema.name.partition("::")[0] != "aten":
            raise Uncaptured(f"{schema.name} has no form")
        given = _arguments(schema, node)
        if any(_is_written(item) for item in schema.arguments[1:]):
            raise Uncaptured(f"{schema.name} changes several values")
        self._writer.made = _metas(node)
        made = form(self._writer, *(self._given(item) for item in given))
        made = _described(made, node)
        first = given[0] if given and isinstance(given[0], fx.Node) else None
        if first is not None and (changes or _is_view(schema, name)):
            self._parts[node] = self._part(first)
        if changes and first is not None:
            self._change(first, node, made)
        return made

    def _first(self, node: fx.Node) -> fx.Node:
        """The node that made a value which others changed in place."""
        return self._same.get(node, node)

    def _free_size(self, node: fx.Node) -> Written:
        """A size as a vector of one number."""
        value, axis = self._given(node.args[0]), int(node.args[1])  # type: ignore[arg-type]
        shape = self._writer.op("Shape", value)
        place = self._writer.ints(axis % len(value.sizes))
        return Written(self._writer.op("Gather", shape, place, axis_i=0).name, (1,), torch.int64)

    def _part(self, node: fx.Node) -> fx.Node:
        return self._parts.get(node, node)

    def _change(self, old: fx.Node, node: fx.Node, made: Any) -> None:
        """Later readers of a value that was changed in place read the new one; Aliased if they read parts of it."""
        first, storage = self._first(old), self._part(old)
        order = {item: at for at, item in enumerate(node.graph.nodes)}
        for other in self._values:
            apart = self._part(other) is storage and self._first(other) is not first
            if apart and any(order.get(user, -1) > order[node] for user in other.users):
                raise Aliased("a value is changed in place of which other parts are read later")
        self._same[node] = first
        self._values[first] = made

    def _given(self, item: Any) -> Any:
        """An argument with values in place of nodes; sizes that are known as numbers."""
        if isinstance(item, fx.Node):
            value = self._values.get(self._first(item))
            if value is None:
                raise Uncaptured(f"{item.target} has no form")
            return value
        if isinstance(item, list | tuple):
            return [self._given(part) for part in item]
        return item


def _argument(node: fx.Node, at: int) -> fx.Node:
    found = node.args[at]
    assert isinstance(found, fx.Node)
    return found


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_view(schema: Any, name: str) -> bool:
    """May a result share memory with the first argument?"""
    return name in _MAY_ALIAS or any(item.alias_info is not None for item in schema.returns)


def _arguments(schema: Any, node: fx.Node) -> list[Any]:
    """All arguments of an operator in order, those that were left out too."""
    made = list(node.args)
    for argument in schema.arguments[len(made) :]:
        made.append(node.kwargs.get(argument.name, argument.default_value))
    return made


def _flat(items: Any) -> list[Any]:
    if isinstance(items, list | tuple):
        return [part for item in items for part in _flat(item)]
    return [items]


def _metas(node: fx.Node) -> list[Written]:
    return [_sketch(item) for item in _flat(node.meta.get("val")) if isinstance(item, torch.Tensor)]


def _sketch(tensor: torch.Tensor) -> Written:
    # Takes a second to import, which only those who build a graph shall wait for.
    from torch.fx.experimental.symbolic_shapes import is_concrete_int

    return Written("", tuple(int(size) if is_concrete_int(size) else None for size in tensor.shape), tensor.dtype)


def _as(node: fx.Node, name: str) -> Written:
    sketch = _sketch(node.meta["val"])
    return Written(name, sketch.sizes, sketch.dtype)


def _described(made: Any, node: fx.Node) -> Any:
    """What a form made, with what torch says of it."""
    sketches = _metas(node)
    if isinstance(made, Written):
        return Written(made.name, sketches[0].sizes, sketches[0].dtype) if sketches else made
    return [
        item if item is None else Written(item.name, sketch.sizes, sketch.dtype)
        for item, sketch in zip(made, sketches, strict=False)
    ]


def _module(node: fx.Node) -> str:
    """The path of the layer that a node comes from."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]).partition("@")[0] if paths else ""
