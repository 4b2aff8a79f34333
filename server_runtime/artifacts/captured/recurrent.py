"""Recurrent layers."""

from typing import Any

from fedwright.server_runtime.artifacts.captured.writer import Writer, Written, fixed, form, rank
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured


@form("lstm")
def _lstm(g: Writer, x: Written, states: Any, weights: Any, *rest: Any) -> Any:
    """Layers one after the other."""
    return _recurrent(g, "LSTM", x, list(states), weights, rest)


@form("gru")
def _gru(g: Writer, x: Written, state: Written, weights: Any, *rest: Any) -> Any:
    """Layers one after the other."""
    return _recurrent(g, "GRU", x, [state], weights, rest)


@form("rnn_tanh")
def _rnn_tanh(g: Writer, x: Written, state: Written, weights: Any, *rest: Any) -> Any:
    """Layers one after the other."""
    return _recurrent(g, "RNN", x, [state], weights, rest, "Tanh")


@form("rnn_relu")
def _rnn_relu(g: Writer, x: Written, state: Written, weights: Any, *rest: Any) -> Any:
    """Layers one after the other."""
    return _recurrent(g, "RNN", x, [state], weights, rest, "Relu")


# ONNX keeps gates in another order than torch: from where to where of torch's rows, in turn.
_GATES = {"LSTM": [(0, 1), (3, 4), (1, 3)], "GRU": [(1, 2), (0, 1), (2, 3)], "RNN": [(0, 1)]}


def _recurrent(g: Writer, kind: str, x: Written, states: list[Written], weights: Any, rest: Any, act: str = "") -> Any:
    """All layers of a recurrent network: what the last one says, and all their last states."""
    has_biases, layers, ratio, training, both_ways, batch_first = rest
    ways = 2 if both_ways else 1
    each = 4 if has_biases else 2
    if len(weights) != layers * ways * each or (ratio and training and layers > 1):
        raise Uncaptured(f"{kind} with projections or dropout between its layers has no form")
    if rank(x) != 3:
        raise Uncaptured(f"{kind} without an axis of samples has no form")
    attributes: dict[str, Any] = {"hidden_size_i": fixed(weights[1], 1)[0]}
    if kind == "GRU":
        attributes["linear_before_reset_i"] = 1
    if kind == "RNN":
        attributes["activations_s"] = [act] * ways
    if both_ways:
        attributes["direction_s"] = "bidirectional"
    now = g.op("Transpose", x, perm_i=[1, 0, 2]) if batch_first else x
    last: list[list[Written]] = []
    for layer in range(layers):
        first = layer * ways
        own = [weights[(first + way) * each : (first + way + 1) * each] for way in range(ways)]
        given = _layer_weights(g, kind, own, has_biases=bool(has_biases))
        start = [s if layers == 1 else g.op("Slice", s, g.ints(first), g.ints(first + ways), g.ints(0)) for s in states]
        said, *ends = g.op(kind, now, *given, None, *start, outputs=1 + len(states), **attributes)
        last.append(ends)
        if both_ways:
            said = g.op("Transpose", said, perm_i=[0, 2, 1, 3])
            now = g.op("Reshape", said, g.ints(0, 0, -1))
        else:
            now = g.op("Squeeze", said, g.ints(1))
    if batch_first:
        now = g.op("Transpose", now, perm_i=[1, 0, 2])
    ends = [items[0] if layers == 1 else g.op("Concat", *items, axis_i=0) for items in zip(*last, strict=True)]
    return (now, *ends)


def _layer_weights(g: Writer, kind: str, ways: list[Any], *, has_biases: bool) -> list[Any]:
    """Weights of the input and of the state, and biases, of all directions of a layer as ONNX has them."""
    found: list[list[Written]] = []
    for own in ways:
        size = fixed(own[1], 1)[0]
        turned = [_gates(g, kind, value, size) for value in own]
        if has_biases:
            turned[2:] = [g.op("Concat", *turned[2:], axis_i=0)]
        found.append([g.op("Unsqueeze", value, g.ints(0)) for value in turned])
    columns = [items[0] if len(items) == 1 else g.op("Concat", *items, axis_i=0) for items in zip(*found, strict=True)]
    return [*columns] if has_biases else [*columns, None]


def _gates(g: Writer, kind: str, weight: Written, size: int) -> Written:
    if kind == "RNN":
        return weight
    parts = [g.op("Slice", weight, g.ints(a * size), g.ints(b * size), g.ints(0)) for a, b in _GATES[kind]]
    made: Written = g.op("Concat", *parts, axis_i=0)
    return made
