"""The private step of a graph: one backward pass, norms of each sample's gradient, clipped sum, noise.

After Li et al., Large Language Models Can Be Strong Differentially Private Learners (2021), and Bu et al.,
Differentially Private Optimization on Large Model at Small Cost (2022): the gradients of layers' outputs are kept, so
that the clipped sum needs no second backward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from fedwright.protocol.artifact import EDGES
from fedwright.protocol.errors import BuildError
from fedwright.protocol.private_graph import CLIP, EXPECTED, GRADIENT, NOISE, ROW_WEIGHT, TINY
from fedwright.server_runtime.artifacts.autodiff.engine import (
    Backward,
    apply_rule,
    arriving,
    differentiate,
    needed_values,
)
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node, Value, outer_names
from fedwright.server_runtime.artifacts.autodiff.shapes import Seen
from fedwright.server_runtime.artifacts.loss import Loss
from fedwright.server_runtime.artifacts.objectives import one_hot
from fedwright.server_runtime.artifacts.private.factors import Factor
from fedwright.server_runtime.artifacts.private.layers import LAYERS, Rows
from fedwright.server_runtime.spec import Objective

# They move numbers about, so that a gradient has the same norm on both sides of them.
_MOVES = ("Reshape", "Transpose", "Identity", "Unsqueeze", "Squeeze", "Flatten")
_BATCHES = 2

Factors = dict[str, list[tuple[str, Factor]]]


class NoSingleNorms(BuildError):
    """A graph in which the samples' norms cannot be had from one backward pass; each sample must be run by itself."""


@dataclass
class _Uses:
    """What is known of a forward graph: values that depend on samples, on parameters, and the parameter behind each."""

    sampled: set[str]
    needed: set[str]
    behind: dict[str, str] = field(default_factory=dict)


def private_gradients(
    graph: Graph, loss: Loss, trained: Sequence[str], *, seen: Mapping[str, Seen], batch: Sequence[str]
) -> dict[str, str]:
    """(Σ_b c_b ∇_b + noise) / expected of each parameter, c_b = weight_b min(1, clip / ||∇_b||) over all of them.

    batch: inputs that hold samples. Appends the inputs clip, expected_batch, row_weight and noise/<parameter>.
    """
    forward = list(graph.nodes)
    uses = _uses(forward, graph, trained, batch)

    def rows(name: str) -> int:
        return int(seen[name].first.shape[0]) // _BATCHES

    if rows(loss.logits) != 1:
        raise NoSingleNorms("a sample has several labels, whose gradients come together")
    arrived = _backward(graph, loss, forward, uses)
    factors = _factors(graph, arrived, uses, rows)
    clip, expected = (graph.add_input(Value(name, ())) for name in (CLIP, EXPECTED))
    weight = graph.add_input(Value(ROW_WEIGHT, (-1,)))
    norms = [factor.squared_norms(graph) for each in factors.values() for _, factor in each]
    total = norms[0] if len(norms) == 1 else graph.op("Sum", *norms)
    norm = graph.op("Sqrt", graph.op("Add", total, graph.scalar(TINY)))
    weights = graph.op("Mul", graph.op("Min", graph.op("Div", clip, norm), graph.scalar(1.0)), weight)
    sums = _sums(graph, forward, factors, weights, uses)
    found = {}
    for name, value in sums.items():
        noise = graph.add_input(Value(NOISE + name, graph.shape(name)))
        found[name] = graph.op("Div", graph.op("Add", value, noise), expected, shape=graph.shape(name))
    return found


def gradients_alone(graph: Graph, loss: Loss, trained: Sequence[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """noise/<p> / expected of each parameter, and the outputs gradient/<p>, which a device takes sample by sample.

    Appends the inputs expected_batch and noise/<parameter>, which is the noisy sum of clipped gradients.
    """
    if EDGES in loss.batch:
        raise BuildError("samples that hang together by edges cannot be hidden one by one; use kind = 'central'")
    gradients = differentiate(graph, loss.value, trained)
    expected = graph.add_input(Value(EXPECTED, ()))
    found, outputs = {}, []
    for name, gradient in gradients.items():
        shape = graph.shape(name)
        graph.record(gradient, shape)
        outputs.append((GRADIENT + name, gradient))
        total = graph.add_input(Value(NOISE + name, shape))
        found[name] = graph.op("Div", total, expected, shape=shape)
    return found, outputs


def check_objective(objective: Objective, model: str) -> None:
    """Raise BuildError for terms that are no mean over samples of what each makes by itself."""
    if objective != Objective(masked_classes=objective.masked_classes, scaler=objective.scaler):
        raise BuildError(
            f"privacy.kind 'example' trains {model} on plain cross-entropy; choose a method without terms of its own"
        )


def _uses(forward: Sequence[Node], graph: Graph, trained: Sequence[str], batch: Sequence[str]) -> _Uses:
    sampled = set(batch)
    behind = {name: name for name in trained}
    for node in forward:
        read = {*node.inputs, *outer_names(node)}
        if read & sampled:
            sampled.update(node.outputs)
        elif node.op in _MOVES and node.inputs[0] in behind:
            behind[node.outputs[0]] = behind[node.inputs[0]]
    return _Uses(sampled, needed_values(graph, trained), behind)


def _backward(graph: Graph, loss: Loss, forward: Sequence[Node], uses: _Uses) -> list[tuple[Node, str]]:
    """Nodes that read parameters beside samples, each with the gradient of its output, per sample and unscaled."""
    context = Backward(graph, uses.needed & uses.sampled)
    classes = graph.shape(loss.logits)[-1]
    share = graph.op("Softmax", loss.logits, axis=-1)
    context.add(loss.logits, graph.op("Sub", share, one_hot(graph, loss.labels, classes)))
    found = []
    for node in reversed(forward):
        grads = arriving(context, node)
        if grads is None:
            continue
        if any(name in uses.needed and name not in uses.sampled for name in [*node.inputs, *outer_names(node)]):
            if node.outputs[0] in graph.composites or grads[0] is None or node.op not in LAYERS:
                raise _unsupported(node)
            found.append((node, grads[0]))
        apply_rule(context, node, grads)
    return found


def _factors(graph: Graph, arrived: list[tuple[Node, str]], uses: _Uses, rows: Rows) -> Factors:
    """By parameter: the value through which it is read, and its factor; of several uses one factor for all."""
    found: Factors = {}
    for node, grad in arrived:
        for place, name in enumerate(node.inputs):
            if name not in uses.needed or name in uses.sampled:
                continue
            if name not in uses.behind:
                raise _unsupported(node)
            factor = LAYERS[node.op](graph, node, grad, place, rows)
            if factor is None:
                raise _unsupported(node)
            found.setdefault(uses.behind[name], []).append((name, factor))
    return {name: _joined(graph, each) for name, each in found.items()}


def _joined(graph: Graph, uses: list[tuple[str, Factor]]) -> list[tuple[str, Factor]]:
    """Several uses of one value as rows that are summed before their norm is taken."""
    if len(uses) == 1:
        return uses
    value = uses[0][0]
    if any(name != value for name, _ in uses) or any(factor.kind == "tokens" for _, factor in uses):
        raise NoSingleNorms(f"the parameter behind {value} is used in several forms")
    rows = [factor.as_rows(graph).left for _, factor in uses]
    return [(value, Factor("rows", graph.op("Sum", *rows), shape=uses[0][1].shape))]


def _sums(
    graph: Graph,
    forward: Sequence[Node],
    factors: Factors,
    weights: str,
    uses: _Uses,
) -> dict[str, str]:
    """The clipped sum of each parameter, brought back through what moved its numbers about."""
    context = Backward(graph, uses.needed - uses.sampled)
    for each in factors.values():
        for name, factor in each:
            context.add(name, factor.weighted_sum(graph, weights))
    for node in reversed(forward):
        if node.outputs[0] in uses.behind:
            grads = arriving(context, node)
            if grads is not None:
                apply_rule(context, node, grads)
    found = {}
    for name in factors:
        total = context.take(name)
        assert total is not None
        assert prod(graph.shape(total)) == prod(graph.shape(name))
        found[name] = total
    return found


def _unsupported(node: Node) -> BuildError:
    where = f" in {node.module}" if node.module else ""
    if node.op == "BatchNormalization":
        return BuildError(
            f"batch normalisation{where} mixes the samples of a batch, so that none can be hidden; use a model with "
            f"group normalisation, such as resnet8-gn or cnn-gn"
        )
    return NoSingleNorms(f"the layer {node.op}{where} has no norms of single samples")
