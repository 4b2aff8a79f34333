"""An exported training graph as a JAX function: one rule per operator that torch writes for ordinary models.

What depends on shapes alone is reckoned with numpy while JAX traces, so that a jitted step holds the arithmetic only.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import onnx
from jax import lax
from jax import numpy as jnp
from onnx import helper, numpy_helper

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def make_loss(model: onnx.ModelProto) -> tuple[Callable[[Any, Any, Any], Any], dict[str, Any]]:
    """(trained, kept, batch) -> (loss, new running statistics) of a model that gives its loss; and its weights."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}

    def loss_of(trained: Any, kept: Any, batch: Any) -> Any:
        values: dict[str, Any] = {"": None, **kept, **batch, **trained}
        running: dict[str, Any] = {}
        for node in model.graph.node:
            attrs = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            made = RULES[node.op_type](*(values[name] for name in node.input), **attrs)
            made = made if isinstance(made, tuple) else (made,)
            values.update(zip(node.output, made, strict=False))
            if node.op_type == "BatchNormalization":
                running |= {node.input[3]: made[1], node.input[4]: made[2]}
        return values[model.graph.output[0].name].reshape(()), running

    return loss_of, weights


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _maths(*values: Any) -> Any:
    """numpy where everything is known, else jax.numpy."""
    return np if all(isinstance(value, np.ndarray | np.generic | int) for value in values) else jnp


def _elementwise(name: str) -> None:
    RULES[name] = lambda *values: getattr(_maths(*values), _NAMES.get(name, name.lower()))(*values)


_NAMES = {"Mul": "multiply", "Sub": "subtract", "Div": "divide", "Pow": "power", "Neg": "negative", "Sqrt": "sqrt"}
for _name in ("Add", "Mul", "Sub", "Pow", "Neg", "Sqrt", "Exp", "Log", "Tanh", "Equal", "Where", "Abs"):
    _elementwise(_name)
RULES |= {
    "Constant": lambda value: numpy_helper.to_array(value),
    "Identity": lambda x: x,
    "Shape": lambda x: np.array(x.shape, np.int64),
    "Relu": jax.nn.relu,
    "Sigmoid": jax.nn.sigmoid,
    "Erf": lambda x: jax.scipy.special.erf(x),
    "HardSwish": jax.nn.hard_swish,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: jnp.clip(alpha * x + beta, 0, 1),
    "Clip": lambda x, low=None, high=None: jnp.clip(x, low, high),
    "MatMul": jnp.matmul,
    "Flatten": lambda x, axis=1: x.reshape(int(np.prod(x.shape[:axis])), -1),
    "Transpose": lambda x, perm: _maths(x).transpose(x, perm),
    "Concat": lambda *x, axis: _maths(*x).concatenate([np.atleast_1d(v) if _maths(v) is np else v for v in x], axis),
    "Unsqueeze": lambda x, axes: _maths(x).expand_dims(x, tuple(int(a) for a in axes)),
    "Squeeze": lambda x, axes: _maths(x).squeeze(x, tuple(int(a) for a in axes)),
    "Softmax": lambda x, axis=-1: jax.nn.softmax(x, axis),
    "LogSoftmax": lambda x, axis=-1: jax.nn.log_softmax(x, axis),
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdims=True),
    "ReduceMean": lambda x, axes, keepdims=1: x.mean(tuple(axes), keepdims=bool(keepdims)),
    "Expand": lambda x, shape: _maths(x).broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Cast": lambda x, to: x.astype(helper.tensor_dtype_to_np_dtype(to)),
    "ConstantOfShape": lambda shape, value=None: np.full(
        tuple(shape),
        0.0 if value is None else numpy_helper.to_array(value).item(),
        np.float32 if value is None else numpy_helper.to_array(value).dtype,
    ),
}


@rule("Div")
def _div(a: Any, b: Any) -> Any:
    whole = np.issubdtype(a.dtype, np.integer)
    return _maths(a, b).floor_divide(a, b) if whole else _maths(a, b).divide(a, b)


@rule("Gather")
def _gather(x: Any, places: Any, axis: int = 0) -> Any:
    return _maths(x, places).take(x, places, axis)


@rule("Reshape")
def _reshape(x: Any, shape: Any, **_: Any) -> Any:
    return x.reshape([x.shape[at] if size == 0 else int(size) for at, size in enumerate(shape)])


@rule("Slice")
def _slice(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    places: list[Any] = [slice(None)] * x.ndim
    along = range(len(starts)) if axes is None else axes
    for at, axis in enumerate(along):
        places[int(axis)] = slice(int(starts[at]), int(ends[at]), 1 if steps is None else int(steps[at]))
    return x[tuple(places)]


@rule("Split")
def _split(x: Any, sizes: Any, axis: int = 0) -> Any:
    return tuple(jnp.split(x, np.cumsum(sizes)[:-1], axis))


@rule("Gemm")
def _gemm(a: Any, b: Any, c: Any = None, **attrs: Any) -> Any:
    left, right = a.T if attrs.get("transA") else a, b.T if attrs.get("transB") else b
    made = attrs.get("alpha", 1.0) * (left @ right)
    return made if c is None else made + attrs.get("beta", 1.0) * c


@rule("Conv")
def _conv(x: Any, weight: Any, bias: Any = None, **attrs: Any) -> Any:
    rank = x.ndim - 2
    pads = attrs.get("pads", [0] * (2 * rank))
    made = lax.conv_general_dilated(
        x,
        weight,
        attrs.get("strides", [1] * rank),
        list(zip(pads[:rank], pads[rank:], strict=True)),
        rhs_dilation=attrs.get("dilations", [1] * rank),
        feature_group_count=attrs.get("group", 1),
    )
    return made if bias is None else made + bias.reshape(-1, *[1] * rank)


@rule("MaxPool")
def _max_pool(x: Any, kernel_shape: Any, strides: Any, **attrs: Any) -> Any:
    """By reshape where windows do not overlap: its gradient is much faster than that of a reduced window."""
    (high, wide), pads = kernel_shape, attrs.get("pads", [0, 0, 0, 0])
    n, c, h, w = x.shape
    if list(kernel_shape) == list(strides) and not any(pads) and h % high == 0 and w % wide == 0:
        return x.reshape(n, c, h // high, high, w // wide, wide).max((3, 5))
    window, steps = (1, 1, *kernel_shape), (1, 1, *strides)
    return lax.reduce_window(
        x, -jnp.inf, lax.max, window, steps, ((0, 0), (0, 0), *zip(pads[:2], pads[2:], strict=True))
    )


@rule("BatchNormalization")
def _batch_norm(x: Any, scale: Any, bias: Any, mean: Any, var: Any, **attrs: Any) -> Any:
    keep, eps = attrs.get("momentum", 0.9), attrs.get("epsilon", 1e-5)
    axes, shape = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    now, spread = x.mean(axes), x.var(axes)
    made = (x - now.reshape(shape)) * lax.rsqrt(spread + eps).reshape(shape) * scale.reshape(shape) + bias.reshape(
        shape
    )
    return made, keep * mean + (1 - keep) * lax.stop_gradient(now), keep * var + (1 - keep) * lax.stop_gradient(spread)


@rule("LayerNormalization")
def _layer_norm(x: Any, scale: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5) -> Any:
    axes = tuple(range(axis % x.ndim, x.ndim))
    made = (x - x.mean(axes, keepdims=True)) * lax.rsqrt(x.var(axes, keepdims=True) + epsilon) * scale
    return made if bias is None else made + bias


@rule("SoftmaxCrossEntropyLoss")
def _cross_entropy(logits: Any, labels: Any, **_: Any) -> Any:
    rows = jax.nn.log_softmax(logits, 1)
    return -jnp.take_along_axis(rows, labels[:, None], 1).mean()


@rule("LSTM")
def _lstm(x: Any, weight: Any, recurrent: Any, bias: Any, _: Any, h0: Any, c0: Any, **attrs: Any) -> Any:
    hidden = attrs["hidden_size"]
    inputs = x @ weight[0].T + bias[0][: 4 * hidden] + bias[0][4 * hidden :]

    def cell(state: Any, p: Any) -> Any:
        i, o, f, g = jnp.split(p + state[0] @ recurrent[0].T, 4, 1)
        c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    (h, c), states = lax.scan(cell, (h0[0], c0[0]), inputs)
    return states[:, None], h[None], c[None]


@rule("GRU")
def _gru(x: Any, weight: Any, recurrent: Any, bias: Any, _: Any, h0: Any, **attrs: Any) -> Any:
    """As torch has it: the reset gate after the product."""
    hidden = attrs["hidden_size"]
    inputs = x @ weight[0].T + bias[0][: 3 * hidden]
    inner = bias[0][3 * hidden :]

    def cell(h: Any, p: Any) -> Any:
        (pz, pr, pn), (qz, qr, qn) = jnp.split(p, 3, 1), jnp.split(h @ recurrent[0].T + inner, 3, 1)
        z, r = jax.nn.sigmoid(pz + qz), jax.nn.sigmoid(pr + qr)
        h = (1 - z) * jnp.tanh(pn + r * qn) + z * h
        return h, h

    h, states = lax.scan(cell, h0[0], inputs)
    return states[:, None], h[None]
