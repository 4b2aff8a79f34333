"""The optimizer as graph nodes: gradients in, new parameters and state out. The learning rate is an input."""

from dataclasses import dataclass, field

from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node, Shape, Value
from fedwright.server_runtime.spec import Optimizer

LEARNING_RATE = "learning_rate"
STEP = "optimizer/step"

# torch adds this to the norm before it divides.
_CLIP_EPS = 1e-6


@dataclass(frozen=True)
class OptimizerState:
    """An optimizer slot: the value it is read as and the value that replaces it."""

    name: str
    value: str
    shape: Shape


@dataclass
class Updates:
    """What the optimizer made: the new value of every parameter and its own state."""

    parameters: dict[str, str] = field(default_factory=dict)
    states: list[OptimizerState] = field(default_factory=list)


class Stepper:
    """Appends one optimizer step; call `apply` once per parameter as its gradient becomes ready."""

    def __init__(self, graph: Graph, optimizer: Optimizer) -> None:
        self.graph = graph
        self.optimizer = optimizer
        self.updates = Updates()
        self.rate = graph.add_input(Value(LEARNING_RATE, ()))
        self._adam_rate = ""
        self._adam_scale = ""

    def apply(self, name: str, grad: str, mask: str | None = None) -> None:
        """Append the update of one parameter; entries where `mask` is zero become and stay zero."""
        if mask is not None:
            grad = self.graph.op("Mul", grad, mask)
        shape = self.graph.shape(name)
        grad = as_line(self.graph, grad, shape)
        new = shaped(self.graph, self._next(name, grad), shape)
        if mask is not None:
            new = self.graph.op("Mul", new, mask)
        self.updates.parameters[name] = new

    def _next(self, name: str, grad: str) -> str:
        """The parameter's next value."""
        return self._sgd(name, grad) if self.optimizer.kind == "sgd" else self._adam(name, grad)

    def _state(self, kind: str, name: str) -> tuple[str, str]:
        """A new slot and its value as the arithmetic wants it."""
        slot = self.graph.add_input(Value(f"{kind}/{name}", self.graph.shape(name)))
        return slot, as_line(self.graph, slot, self.graph.shape(name))

    def _weight(self, name: str) -> str:
        return as_line(self.graph, name, self.graph.shape(name))

    def _keep(self, slot: str, value: str) -> None:
        shape = self.graph.shape(slot)
        self.updates.states.append(OptimizerState(slot, shaped(self.graph, value, shape), shape))

    def _decayed(self, name: str, grad: str) -> str:
        """g + decay * w"""
        if self.optimizer.weight_decay == 0.0:
            return grad
        decay = self.graph.op("Mul", self._weight(name), self.graph.scalar(self.optimizer.weight_decay))
        return self.graph.op("Add", grad, decay)

    def _sgd(self, name: str, grad: str) -> str:
        """v = momentum v + g; w = w - rate v"""
        g = self.graph
        step = self._decayed(name, grad)
        if self.optimizer.momentum:
            slot, old = self._state("momentum", name)
            step = self._momentum(old, step)
            self._keep(slot, step)
        return g.op("Sub", self._weight(name), g.op("Mul", step, self.rate))

    def _momentum(self, slot: str, grad: str) -> str:
        g, momentum = self.graph, self.optimizer.momentum
        last = g.nodes[-1]
        if is_plain_gemm(last, grad):
            # the product adds the old momentum for free
            last.inputs.append(slot)
            last.attrs["beta"] = momentum
            return grad
        kept = g.op("Mul", slot, g.scalar(momentum))
        if is_scatter_into_zeros(g, last, grad):
            # the sums go straight into the old momentum instead of into zeros
            g.nodes[-2:] = [g.nodes[-1], last]
            last.inputs[0] = kept
            return grad
        return g.op("Add", kept, grad)

    def _adam(self, name: str, grad: str) -> str:
        """m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w = w - rate m' / (sqrt(v') + eps) with m', v' bias-corrected"""
        g, o = self.graph, self.optimizer
        if not self._adam_rate:
            self._adam_scalars()
        if o.kind == "adam":
            grad = self._decayed(name, grad)
        (slot_m, old_m), (slot_v, old_v) = self._state("adam_m", name), self._state("adam_v", name)
        m = g.op("Add", g.op("Mul", old_m, g.scalar(o.beta1)), g.op("Mul", grad, g.scalar(1 - o.beta1)))
        square = g.op("Mul", g.op("Mul", grad, grad), g.scalar(1 - o.beta2))
        v = g.op("Add", g.op("Mul", old_v, g.scalar(o.beta2)), square)
        self._keep(slot_m, m)
        self._keep(slot_v, v)
        root = g.op("Add", g.op("Mul", g.op("Sqrt", v), self._adam_scale), g.scalar(o.eps))
        step = g.op("Div", g.op("Mul", m, self._adam_rate), root)
        if o.kind == "adamw" and o.weight_decay:
            kept = g.op("Sub", g.scalar(1.0), g.op("Mul", self.rate, g.scalar(o.weight_decay)))
            return g.op("Sub", g.op("Mul", self._weight(name), kept), step)
        return g.op("Sub", self._weight(name), step)

    def _adam_scalars(self) -> None:
        """rate / (1 - b1^t) and 1 / sqrt(1 - b2^t), shared by all parameters."""
        g, o = self.graph, self.optimizer
        step = g.op("Add", g.add_input(Value(STEP, ())), g.scalar(1.0), shape=())
        self._keep(STEP, step)
        first = g.op("Sub", g.scalar(1.0), g.op("Pow", g.scalar(o.beta1), step))
        second = g.op("Sub", g.scalar(1.0), g.op("Pow", g.scalar(o.beta2), step))
        self._adam_rate = g.op("Div", self.rate, first)
        self._adam_scale = g.op("Reciprocal", g.op("Sqrt", second))


def _slow(shape: Shape) -> bool:
    """onnxruntime takes a hundred times as long to multiply [n, m, 1, 1] by a number as to multiply [n * m]."""
    return len(shape) > 2 and shape[-1] == 1


def as_line(graph: Graph, value: str, shape: Shape) -> str:
    """The value in the shape in which it is updated fast."""
    return graph.op("Reshape", value, graph.ints(-1)) if _slow(shape) else value


def shaped(graph: Graph, value: str, shape: Shape) -> str:
    """Back from `as_line`."""
    return graph.op("Reshape", value, graph.ints(*shape)) if _slow(shape) else value


def is_plain_gemm(node: Node, output: str) -> bool:
    """Does this product make the value and add nothing to it yet?"""
    return node.op == "Gemm" and node.outputs == [output] and len(node.inputs) == 2


def is_scatter_into_zeros(graph: Graph, node: Node, output: str) -> bool:
    """Does this node make the value by adding entries to zeros?"""
    if node.op != "ScatterElements" or node.outputs != [output] or node.attrs.get("reduction") != "add":
        return False
    return any(node.inputs[0] in other.outputs and other.op == "ConstantOfShape" for other in graph.nodes)


def clip(graph: Graph, gradients: dict[str, str], limit: float) -> dict[str, str]:
    """Gradients scaled down together so that their common norm is at most `limit`."""
    squares = [graph.op("ReduceSum", graph.op("Mul", g, g), keepdims=0) for g in gradients.values()]
    norm = graph.op("Sqrt", graph.op("Sum", *squares))
    ratio = graph.op("Div", graph.scalar(limit), graph.op("Add", norm, graph.scalar(_CLIP_EPS)))
    scale = graph.op("Min", ratio, graph.scalar(1.0))
    shapes = {name: graph.shape(name) for name in gradients}
    return {
        name: shaped(graph, graph.op("Mul", as_line(graph, grad, shapes[name]), scale), shapes[name])
        for name, grad in gradients.items()
    }
