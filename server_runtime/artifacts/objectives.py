"""Losses as graph pieces: each function appends one term to the graph and returns the scalar it made.

Symbols: B examples, C classes, z logits [B, C], y labels [B], p = softmax(z).
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedwright.server_runtime.artifacts.autodiff.engine import Backward
from fedwright.server_runtime.artifacts.autodiff.graph import Composite, Graph, Value

TARGET_LOGITS, THRESHOLD, CLASS_MASK = "target_logits", "threshold", "class_mask"

_TINY = 1e-12

Gradient = Callable[[Backward, str], list[str | None]]


def rows_of(graph: Graph, value: str, width: int) -> str:
    """A value as a matrix with rows of this width."""
    if len(graph.shape(value)) == 2:
        return value
    return graph.op("Reshape", value, graph.ints(-1, width), shape=(-1, width))


def count_rows(graph: Graph, matrix: str) -> str:
    """How many rows a matrix has, as float32."""
    return graph.op("Cast", graph.op("Gather", graph.op("Shape", matrix), graph.constant(np.array(0))), to=1)


def one_hot(graph: Graph, labels: str, classes: int) -> str:
    """1 at each row's label, else 0: [B, C]."""
    return graph.op("OneHot", labels, graph.ints(classes), graph.constant(np.array([0, 1], np.float32)))


def correct(graph: Graph, logits: str, labels: str) -> str:
    """How many rows have their largest logit at the label."""
    best = graph.op("ArgMax", logits, axis=-1, keepdims=0)
    return graph.op("ReduceSum", graph.op("Cast", graph.op("Equal", best, labels), to=1), keepdims=0)


def cross_entropy(graph: Graph, logits: str, labels: str) -> str:
    """mean_B -log p[y]; its gradient is (p - onehot(y)) / B, made in one step."""
    log_p = graph.op("LogSoftmax", logits, axis=-1)
    column = graph.op("Unsqueeze", labels, graph.ints(1))
    picked = graph.op("GatherElements", log_p, column, axis=1)
    loss = graph.op("Neg", graph.op("ReduceMean", picked, keepdims=0))

    def gradient(context: Backward, grad: str) -> list[str | None]:
        g = context.graph
        less = g.op("Sub", g.op("Exp", picked), g.scalar(1.0))
        excess = g.op("ScatterElements", g.op("Exp", log_p), column, less, axis=1)
        return [g.op("Mul", excess, g.op("Div", grad, count_rows(g, logits)))]

    graph.composites[loss] = Composite((logits,), gradient)
    return loss


def squared_error(graph: Graph, outputs: str, targets: str) -> str:
    """mean (z - t)^2 over all entries"""
    away = graph.op("Sub", outputs, targets)
    return graph.op("ReduceMean", graph.op("Mul", away, away), keepdims=0)


def binary_cross_entropy(graph: Graph, logits: str, targets: str) -> str:
    """mean log(1 + e^z) - z t over all entries, t in {0, 1}"""
    terms = graph.op("Sub", graph.op("Softplus", logits), graph.op("Mul", logits, targets))
    return graph.op("ReduceMean", terms, keepdims=0)


def masked_classes(graph: Graph, logits: str) -> str:
    """z with the logits of classes that the device lacks set to zero (HeteroFL)."""
    classes = graph.shape(logits)[-1]
    # Several exits share one mask.
    mask = CLASS_MASK if graph.knows(CLASS_MASK) else graph.add_input(Value(CLASS_MASK, (classes,)))
    return graph.op("Mul", logits, mask, shape=graph.shape(logits))


def proximal(graph: Graph, parameters: Sequence[str]) -> str:
    """1/2 sum ||w - centre||^2, whose gradient is w - centre (FedProx)."""
    parts = []
    for name in parameters:
        centre = graph.add_input(Value(f"centre/{name}", graph.shape(name)))
        away = graph.op("Sub", name, centre)
        parts.append(graph.op("ReduceSum", graph.op("Mul", away, away), keepdims=0))
        graph.composites[parts[-1]] = Composite((name,), _scaled_by(away, 2.0))
    return graph.op("Mul", graph.op("Sum", *parts), graph.scalar(0.5))


def _scaled_by(value: str, factor: float) -> Gradient:
    def gradient(context: Backward, grad: str) -> list[str | None]:
        g = context.graph
        return [g.op("Mul", value, g.op("Mul", grad, g.scalar(factor)))]

    return gradient


def prototypes(graph: Graph, embedding: str, labels: str, classes: int) -> str:
    """sum over classes c in the batch of ||mean_{y=c} e - P_c||, for the classes with a prototype (FRAMP)."""
    width = graph.shape(embedding)[-1]
    targets = graph.add_input(Value("prototypes", (classes, width)))
    owned = graph.add_input(Value("prototype_owned", (classes,)))
    member = one_hot(graph, labels, classes)
    counts = graph.op("ReduceSum", member, graph.ints(0), keepdims=0)
    share = graph.op("Div", member, graph.op("Max", counts, graph.scalar(1.0)))
    means = graph.op("Gemm", share, embedding, transA=1)
    away = graph.op("Sub", means, targets)
    squared = graph.op("ReduceSum", graph.op("Mul", away, away), graph.ints(1), keepdims=0)
    distance = graph.op("Sqrt", graph.op("Add", squared, graph.scalar(_TINY)))
    present = graph.op("Mul", graph.op("Min", counts, graph.scalar(1.0)), owned)
    return graph.op("ReduceSum", graph.op("Mul", distance, present), keepdims=0)


def divergence(graph: Graph, teacher: str, student: str, temperature: float) -> str:
    """T^2 mean_B KL(softmax(teacher/T) || softmax(student/T))."""
    scale = graph.scalar(1.0 / temperature)
    log_t = graph.op("LogSoftmax", graph.op("Mul", teacher, scale), axis=-1)
    log_s = graph.op("LogSoftmax", graph.op("Mul", student, scale), axis=-1)
    terms = graph.op("Mul", graph.op("Exp", log_t), graph.op("Sub", log_t, log_s))
    total = graph.op("ReduceSum", terms, graph.ints(-1), keepdims=0)
    mean = graph.op("ReduceMean", total, keepdims=0)
    return graph.op("Mul", mean, graph.scalar(temperature**2))


def match_logits(graph: Graph, logits: str, classes: int) -> str:
    """mean |z - target| (FedMD)."""
    target = graph.add_input(Value(TARGET_LOGITS, (-1, classes)))
    return graph.op("ReduceMean", graph.op("Abs", graph.op("Sub", logits, target)), keepdims=0)


def correlate(graph: Graph, logits: str, classes: int, *, apart: float) -> str:
    """sum_u (1 - M_uu)^2 + apart sum_{u≠v} (1 + M_uv)^2 (FCCL), with the correlation M_uv of z_u and t_v in a batch.

    M_uv = <z_u - mean, t_v - mean> / (||z_u - mean|| ||t_v - mean||)
    """
    target = graph.add_input(Value(TARGET_LOGITS, (-1, classes)))
    products = graph.op("Gemm", _standard(graph, logits), _standard(graph, target), transA=1)
    identity = np.eye(classes, dtype=np.float32)
    # 1 on the diagonal is wanted, -1 beside it.
    away = graph.op("Sub", products, graph.constant(2 * identity - 1))
    weights = graph.constant(identity + np.float32(apart) * (1 - identity))
    return graph.op("ReduceSum", graph.op("Mul", graph.op("Mul", away, away), weights), keepdims=0)


def _standard(graph: Graph, matrix: str) -> str:
    """Columns less their mean, each of length 1."""
    less = graph.op("Sub", matrix, graph.op("ReduceMean", matrix, axes=[0], keepdims=1))
    squared = graph.op("ReduceSum", graph.op("Mul", less, less), graph.ints(0), keepdims=1)
    return graph.op("Div", less, graph.op("Sqrt", graph.op("Add", squared, graph.scalar(_TINY))))


def linear(graph: Graph, parameters: Sequence[str]) -> str:
    """sum <correction, w>, whose gradient is the correction (SCAFFOLD)."""
    parts = []
    for name in parameters:
        correction = graph.add_input(Value(f"correction/{name}", graph.shape(name)))
        parts.append(graph.op("ReduceSum", graph.op("Mul", name, correction), keepdims=0))
        graph.composites[parts[-1]] = Composite((name,), _scaled_by(correction, 1.0))
    return graph.op("Sum", *parts)


def exits(graph: Graph, logits: Sequence[str], fit: Callable[[str], str], *, distill: float, temperature: float) -> str:
    """sum_j j L_j / (1 + ... + l), L_l = fit, L_j = fit + distill T^2 KL(last || exit j) (ScaleFL).

    fit: appends the term that compares one exit's outputs with the labels, say cross-entropy.
    The gradient also flows through the last exit's side of the KL, as in the authors' code.
    """
    terms = []
    for number, exit_logits in enumerate(logits, start=1):
        loss = fit(exit_logits)
        if distill and number < len(logits):
            kl = divergence(graph, logits[-1], exit_logits, temperature)
            loss = graph.op("Add", loss, graph.op("Mul", kl, graph.scalar(distill)))
        terms.append(graph.op("Mul", loss, graph.scalar(number)))
    weight = len(terms) * (len(terms) + 1) / 2
    return graph.op("Mul", graph.op("Sum", *terms), graph.scalar(1.0 / weight))


def scale_hidden(graph: Graph, rate: float) -> None:
    """Divide what hidden convolutions and linear layers give by `rate` (HeteroFL's scaler); logits stay."""
    forward, graph.nodes = graph.nodes, []
    logits = {value.name for value in graph.outputs}
    renamed: dict[str, str] = {}
    for node in forward:
        node.inputs = [renamed.get(name, name) for name in node.inputs]
        graph.nodes.append(node)
        made = node.outputs[0]
        if node.op in ("Conv", "Gemm") and made not in logits:
            renamed[made] = graph.op("Mul", made, graph.scalar(1.0 / rate), shape=graph.shape(made))


def fiarse_masks(graph: Graph, parameters: Sequence[str]) -> None:
    """Let the forward pass read w [|w| >= theta] instead of w (FIARSE).

    dw = (1 + 2 theta |w| / (|w| + theta)^2) dy on kept entries, 0 on dropped ones.
    """
    forward, graph.nodes = graph.nodes, []
    threshold = graph.add_input(Value(THRESHOLD, ()))
    renamed = {}
    for name in parameters:
        size = graph.op("Abs", name)
        kept = graph.op("Cast", graph.op("GreaterOrEqual", size, threshold), to=1)
        renamed[name] = graph.op("Mul", name, kept, shape=graph.shape(name))
        graph.composites[renamed[name]] = Composite((name,), _fiarse_gradient(size, kept, threshold))
    for node in forward:
        node.inputs = [renamed.get(name, name) for name in node.inputs]
    graph.nodes += forward


def _fiarse_gradient(size: str, kept: str, threshold: str) -> Gradient:
    def gradient(context: Backward, grad: str) -> list[str | None]:
        g = context.graph
        total = g.op("Add", size, threshold)
        # an entry and a threshold of zero make 0/0; the factor is 1 there
        safe = g.op("Max", g.op("Mul", total, total), g.scalar(1e-30))
        extra = g.op("Div", g.op("Mul", size, g.op("Mul", threshold, g.scalar(2.0))), safe)
        factor = g.op("Mul", g.op("Add", extra, g.scalar(1.0)), kept)
        return [g.op("Mul", grad, factor)]

    return gradient
