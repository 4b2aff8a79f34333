"""Gradients of Conv and ConvTranspose; which form is used for which sizes is decided by `conv_table`."""

from fedwright.server_runtime.artifacts.autodiff.conv_forms import Geometry, bias_gradient
from fedwright.server_runtime.artifacts.autodiff.conv_table import input_form, weight_form
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Node


@rule("Conv")
def conv(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """dX is a convolution with the kernel turned round, dW correlates the input with dY."""
    (dy,) = grads
    assert dy is not None
    x, weight = node.inputs[:2]
    sizes = Geometry.of(node, context.shape(x), context.shape(weight), context.shape(node.outputs[0]))
    dx = input_form(sizes)(context.graph, sizes, context.saved(weight), dy) if context.needs(x) else None
    dw = weight_form(sizes)(context.graph, sizes, x, dy) if context.needs(weight) else None
    has_bias = len(node.inputs) > 2 and context.needs(node.inputs[2])
    return [dx, dw, bias_gradient(context.graph, dy, sizes.rank) if has_bias else None]


@rule("ConvTranspose")
def conv_transpose(context: Backward, node: Node, grads: list[str | None]) -> list[str | None]:
    """The mirror image of Conv: dX is a plain convolution of dY, dW swaps the roles of input and dY."""
    (dy,) = grads
    assert dy is not None
    x, weight = node.inputs[:2]
    sizes = Geometry.of(node, context.shape(node.outputs[0]), context.shape(weight), context.shape(x))
    dx = dw = None
    if context.needs(x):
        dx = context.graph.op("Conv", dy, weight, **sizes.attrs())
    if context.needs(weight):
        dw = weight_form(sizes)(context.graph, sizes, dy, x)
    has_bias = len(node.inputs) > 2 and context.needs(node.inputs[2])
    return [dx, dw, bias_gradient(context.graph, dy, sizes.rank) if has_bias else None]
