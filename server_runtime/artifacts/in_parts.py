"""A step in parts: one graph adds gradients to sums that stay, another one makes the step of them.

A batch then comes as micro-batches of any size, and no tensor exists twice: what a graph writes takes the place of what
it read. That is right in whatever order a runtime calls its operators, because everything that reads an old value comes
before what writes the new one (`check_in_place`).
"""

from collections.abc import Iterable, Mapping

from fedwright.protocol.artifact import SHARE, SUM
from fedwright.protocol.errors import BuildError
from fedwright.server_runtime.artifacts.autodiff.finish import finish
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node, Shape, Value, outer_names
from fedwright.server_runtime.artifacts.optimizer import (
    OptimizerState,
    Stepper,
    Updates,
    as_line,
    clip,
    is_plain_gemm,
    is_scatter_into_zeros,
    shaped,
)
from fedwright.server_runtime.spec import Optimizer, Structure

_ALIASES = {"Reshape", "Identity"}


def parameter_of(slot: str) -> str:
    """The parameter whose gradients a sum is of."""
    return slot.removeprefix(SUM)


def takes_parts(structure: Structure) -> bool:
    """Whether steps of this structure are sums over samples that end with one update."""
    objective = structure.objective
    grouped = objective.meta_rate or objective.envelope
    return not (structure.private or objective.element_masks or grouped)


class Summing:
    """Appends sum' = sum + gradient for every parameter; `seed` is what the loss of a part counts for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.seed = graph.add_input(Value(SHARE, ()))
        self.updates = Updates()

    def apply(self, name: str, grad: str) -> None:
        """Take a gradient as soon as it is complete."""
        shape = self.graph.shape(name)
        slot = self.graph.add_input(Value(SUM + name, shape))
        self.updates.states.append(OptimizerState(slot, self._added(slot, grad), shape))

    def _added(self, slot: str, grad: str) -> str:
        """slot + gradient, by the product or the scatter that makes the gradient where there is one."""
        last = self.graph.nodes[-1]
        if is_plain_gemm(last, grad):
            last.inputs.append(slot)
            last.attrs["beta"] = 1.0
            return grad
        if is_scatter_into_zeros(self.graph, last, grad):
            last.inputs[0] = slot
            return grad
        return self.graph.op("Add", slot, grad)


class _UpdateStepper(Stepper):
    """Steps from sums, which are zero again afterwards, or what momentum leaves of them."""

    def __init__(self, graph: Graph, optimizer: Optimizer) -> None:
        super().__init__(graph, optimizer)
        self.sums: dict[str, str] = {}

    def _next(self, name: str, grad: str) -> str:
        sgd = self.optimizer.kind == "sgd" and self.optimizer.clip_norm is None
        step = self._decayed(name, grad) if sgd else grad
        # Without clipping the sum itself is the velocity.
        left = self.graph.op("Mul", step, self.graph.scalar(self.optimizer.momentum if sgd else 0.0))
        self.sums[name] = shaped(self.graph, left, self.graph.shape(name))
        if sgd:
            return self.graph.op("Sub", self._weight(name), self.graph.op("Mul", step, self.rate))
        return super()._next(name, grad)


def update_graph(shapes: Mapping[str, Shape], optimizer: Optimizer) -> Graph:
    """The step of parameters of these shapes from the sums of their gradients."""
    graph = Graph()
    stepper = _UpdateStepper(graph, optimizer)
    for name, shape in shapes.items():
        graph.add_input(Value(name, shape))
    sums = {name: graph.add_input(Value(SUM + name, shape)) for name, shape in shapes.items()}
    # Made of an input, so that no runtime takes the product by it away: it reads a sum before that is written.
    one = graph.op("Cast", graph.op("Equal", stepper.rate, stepper.rate), to=1)
    if optimizer.clip_norm is None:
        gradients = {name: _times(graph, slot, one) for name, slot in sums.items()}
    else:
        gradients = clip(graph, sums, optimizer.clip_norm)
    for name, grad in gradients.items():
        stepper.apply(name, grad)
    new = {SUM + name: value for name, value in stepper.sums.items()} | stepper.updates.parameters
    new |= {state.name: state.value for state in stepper.updates.states}
    for name, value in new.items():
        graph.record(value, graph.shape(name))
    finish(graph, [(f"next/{name}", value) for name, value in new.items()])
    check_in_place(graph, new)
    return graph


def _times(graph: Graph, value: str, number: str) -> str:
    shape = graph.shape(value)
    return shaped(graph, graph.op("Mul", as_line(graph, value, shape), number), shape)


def check_in_place(graph: Graph, slots: Iterable[str]) -> None:
    """Raise BuildError unless each slot is read by nothing that might run after `next/slot` is written."""
    makers = graph.producers()
    for slot in slots:
        writer = makers[f"next/{slot}"]
        before = _needed(writer, makers)
        for reader in _readers(graph, slot):
            if reader is not writer and id(reader) not in before:
                raise BuildError(f"{reader.op} reads {slot} but may run after it is written; report this model")


def _needed(node: Node, makers: Mapping[str, Node]) -> set[int]:
    """The nodes without which this one cannot run."""
    found: set[int] = set()
    wanted = [node]
    while wanted:
        for name in wanted.pop().inputs:
            maker = makers.get(name)
            if maker is not None and id(maker) not in found:
                found.add(id(maker))
                wanted.append(maker)
    return found


def _readers(graph: Graph, slot: str) -> list[Node]:
    """Those that read a slot's memory, also by another name."""
    names, found = {slot}, []
    for node in graph.nodes:
        if names.intersection([*node.inputs, *outer_names(node)]):
            found.append(node)
            if node.op in _ALIASES:
                names.add(node.outputs[0])
    return found
