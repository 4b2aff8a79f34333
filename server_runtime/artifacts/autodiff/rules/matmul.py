"""Gradients of matrix products."""

import numpy as np

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.engine import Backward, rule
from fedwright.server_runtime.artifacts.autodiff.graph import Node
from fedwright.server_runtime.artifacts.autodiff.rules.elementwise import Grads, only


@rule("Gemm")
def gemm(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """Y = alpha A' B' + beta C, where ' is a transpose when transA / transB say so"""
    a, b = node.inputs[:2]
    dy = _scaled(ctx, only(grads), float(node.attrs.get("alpha", 1.0)))
    flip_a, flip_b = int(node.attrs.get("transA", 0)), int(node.attrs.get("transB", 0))
    if ctx.needs(a):
        ctx.add(a, _gemm_left(ctx, dy, ctx.saved(b), flip_a, flip_b))
    if ctx.needs(b):
        if flip_a:
            left, right = (dy, a) if flip_b else (a, dy)
            ctx.add(b, ctx.graph.op("Gemm", left, right, transA=flip_b, transB=flip_b))
        else:
            kept = ctx.saved(a)
            ctx.add_product(b, *((dy, kept) if flip_b else (kept, dy)))
    if len(node.inputs) > 2 and node.inputs[2] and ctx.needs(node.inputs[2]):
        _gemm_bias(ctx, node, _scaled(ctx, only(grads), float(node.attrs.get("beta", 1.0))))
    return [None, None, None]


def _gemm_left(ctx: Backward, dy: str, b: str, flip_a: int, flip_b: int) -> str:
    if flip_a:
        return ctx.graph.op("Gemm", b, dy, transA=flip_b, transB=1)
    return ctx.graph.op("Gemm", dy, b, transB=1 - flip_b)


def _gemm_bias(ctx: Backward, node: Node, dy: str) -> None:
    bias, out = node.inputs[2], ctx.shape(node.outputs[0])
    if ctx.shape(bias) == out[-1:]:
        ctx.add_rows(bias, dy)
    else:
        ctx.add(bias, ctx.unbroadcast(dy, out, bias))


def _scaled(ctx: Backward, value: str, factor: float) -> str:
    return value if factor == 1.0 else ctx.graph.op("Mul", value, ctx.graph.scalar(factor))


@rule("MatMul")
def matmul(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """Y = A B over broadcast leading axes"""
    a, b = node.inputs
    shape_a, shape_b, dy = ctx.shape(a), ctx.shape(b), only(grads)
    if len(shape_a) == 1 or len(shape_b) == 1:
        return _matmul_vector(ctx, node, dy)
    da = None
    if ctx.needs(a):
        product = ctx.graph.op("MatMul", dy, swap_last(ctx, ctx.saved(b), len(shape_b)))
        da = ctx.unbroadcast(product, _batch_shape(ctx, node) + shape_a[-2:], a)
    if not ctx.needs(b):
        return [da, None]
    if len(shape_b) == 2:
        ctx.add_product(b, _rows(ctx, a, shape_a[-1]), _rows(ctx, dy, shape_b[-1], rank=len(shape_a)))
        return [da, None]
    product = ctx.graph.op("MatMul", swap_last(ctx, a, len(shape_a)), dy)
    return [da, ctx.unbroadcast(product, _batch_shape(ctx, node) + shape_b[-2:], b)]


def _batch_shape(ctx: Backward, node: Node) -> tuple[int, ...]:
    return ctx.shape(node.outputs[0])[:-2]


def swap_last(ctx: Backward, value: str, rank: int) -> str:
    """The value with its last two axes exchanged (the runtime fuses this into the product)."""
    return ctx.graph.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _rows(ctx: Backward, value: str, width: int, rank: int | None = None) -> str:
    """The value as a matrix of rows."""
    if (len(ctx.shape(value)) if rank is None else rank) == 2:
        return value
    return ctx.graph.op("Reshape", value, ctx.graph.ints(-1, width))


def _matmul_vector(ctx: Backward, node: Node, dy: str) -> Grads:
    """A product with a vector on one side or both."""
    g, (a, b) = ctx.graph, node.inputs
    rank_a, rank_b = len(ctx.shape(a)), len(ctx.shape(b))
    if rank_a == 1 and rank_b == 1:
        return [g.op("Mul", dy, b), g.op("Mul", dy, a)]
    out = ctx.shape(node.outputs[0])
    if rank_b == 1:
        column = g.op("Unsqueeze", dy, g.ints(-1))
        da = g.op("Mul", column, b)
        return [da, ctx.unbroadcast(g.op("Mul", column, a), ctx.shape(a), b)]
    row = g.op("Unsqueeze", dy, g.ints(-2))
    db = g.op("Mul", g.op("Unsqueeze", a, g.ints(1)), row)
    total = g.op("ReduceSum", g.op("Mul", row, b), g.ints(-1), keepdims=0)
    return [ctx.unbroadcast(total, (*out[:-1], ctx.shape(a)[0]), a), db]


@rule("Einsum")
def einsum(ctx: Backward, node: Node, grads: Grads) -> Grads:
    """The gradient of each operand is the einsum of dy with the other operands.

    A label that stands in this operand alone was summed away: a vector of ones spreads the gradient over it again.
    """
    terms, out = _einsum_terms(ctx, node)
    if any(len(set(term)) != len(term) for term in [*terms, out]):
        raise UnsupportedOperator("Einsum with a repeated label", node.name, node.module)
    results: Grads = []
    for index, name in enumerate(node.inputs):
        if not ctx.needs(name):
            results.append(None)
            continue
        others = [i for i in range(len(terms)) if i != index]
        reachable = set(out).union(*(set(terms[i]) for i in others))
        summed = {
            label: size for label, size in zip(terms[index], ctx.shape(name), strict=True) if label not in reachable
        }
        if -1 in summed.values():
            raise UnsupportedOperator("Einsum that sums over the batch", node.name, node.module)
        ones = [ctx.graph.constant(np.ones(size, np.float32)) for size in summed.values()]
        equation = ",".join([out, *(terms[i] for i in others), *summed]) + "->" + terms[index]
        sources = [only(grads), *(node.inputs[i] for i in others), *ones]
        results.append(ctx.graph.op("Einsum", *sources, equation=equation))
    return results


def _einsum_terms(ctx: Backward, node: Node) -> tuple[list[str], str]:
    """The labels of every operand and of the result, with any ellipsis spelled out."""
    equation = str(node.attrs["equation"]).replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        raise UnsupportedOperator("Einsum without ->", node.name, node.module)
    if "..." in equation:
        free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
        ranks = [
            len(ctx.shape(name)) - len(term.replace("...", "")) for name, term in zip(node.inputs, terms, strict=True)
        ]
        width = max(rank for rank, term in zip(ranks, terms, strict=True) if "..." in term)
        labels = "".join(free[:width])
        terms = [t.replace("...", labels[width - r :]) for t, r in zip(terms, ranks, strict=True)]
        out = out.replace("...", labels)
    return terms, out
