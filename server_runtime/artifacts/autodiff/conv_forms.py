"""Equivalent ways to write the gradients of a convolution in plain operators.

A convolution y[n,o,p] = sum over c, t of w[o,c,t] x[n,c,p*stride + t*dilation - pad] has
    dW[o,c,t] = sum over n, p of dY[n,o,p] x[n,c,p*stride + t*dilation - pad]
    dX = the same sum read backwards (a transposed convolution).
A weight form is (graph, sizes, x, dy) -> dW, an input form is (graph, sizes, weight, dy) -> dX. They differ only
in speed; `conv_table` picks one by size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from fedwright.protocol.errors import BuildError
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node, Shape

Form = Callable[[Graph, "Geometry", str, str], str]


@dataclass(frozen=True)
class Geometry:
    """The sizes of a convolution; tuples have one entry per spatial axis."""

    channels_in: int
    channels_out: int
    group: int
    kernel: Shape
    stride: Shape
    dilation: Shape
    begin: Shape
    end: Shape
    size_in: Shape
    size_out: Shape

    @classmethod
    def of(cls, node: Node, x: Shape, weight: Shape, y: Shape) -> "Geometry":
        """Sizes of a Conv node from the shapes of its input, weight [out, in/group, kernel] and output."""
        attrs = node.attrs
        rank = len(weight) - 2
        if attrs.get("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET") or -1 in x[2:] or -1 in y[2:]:
            raise BuildError(
                f"convolution {node.name} has automatic padding or a free image size; give the padding in numbers "
                f"and export with a fixed image size"
            )
        pads = tuple(attrs.get("pads", (0,) * (2 * rank)))
        return cls(
            channels_in=x[1],
            channels_out=y[1],
            group=attrs.get("group", 1),
            kernel=tuple(weight[2:]),
            stride=tuple(attrs.get("strides", (1,) * rank)),
            dilation=tuple(attrs.get("dilations", (1,) * rank)),
            begin=pads[:rank],
            end=pads[rank:],
            size_in=tuple(x[2:]),
            size_out=tuple(y[2:]),
        )

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def taps(self) -> list[Shape]:
        """Every kernel position."""
        return list(product(*(range(size) for size in self.kernel)))

    @property
    def positions(self) -> int:
        """Output positions per sample and channel."""
        return prod(self.size_out)

    @property
    def depthwise(self) -> bool:
        """One input channel per group?"""
        return self.group == self.channels_in and self.group > 1

    def attrs(self) -> dict[str, Any]:
        """Attributes of the Conv node of these sizes."""
        return {
            "strides": list(self.stride),
            "dilations": list(self.dilation),
            "pads": [*self.begin, *self.end],
            "group": self.group,
        }


def bias_gradient(graph: Graph, dy: str, rank: int) -> str:
    """dY summed over everything but channels, the spatial axes first: that is the fast order."""
    per_sample = graph.op("ReduceSum", dy, graph.ints(*range(2, 2 + rank)), keepdims=0)
    return graph.op("ReduceSum", per_sample, graph.ints(0), keepdims=0)


def pad(graph: Graph, value: str, before: Sequence[int], after: Sequence[int]) -> str:
    """Zeros around the last axes of a value of rank 2 + len(before); a negative number cuts off instead."""
    if not any(before) and not any(after):
        return value
    return graph.op("Pad", value, graph.ints(0, 0, *before, 0, 0, *after))


def window(graph: Graph, value: str, ranges: dict[int, tuple[int, int, int]]) -> str:
    """A strided part of a value: axis -> (start, stop, step)."""
    starts, stops, steps = zip(*ranges.values(), strict=True)
    args = (graph.ints(*starts), graph.ints(*stops), graph.ints(*ranges))
    if all(step == 1 for step in steps):
        return graph.op("Slice", value, *args)
    return graph.op("Slice", value, *args, graph.ints(*steps))


def _tap_ranges(sizes: Geometry, tap: Shape, axes: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """For the chosen spatial axes, the part of the padded input that a kernel position sees."""
    ranges = {}
    for axis in axes:
        start = tap[axis] * sizes.dilation[axis]
        stop = start + (sizes.size_out[axis] - 1) * sizes.stride[axis] + 1
        ranges[2 + axis] = (start, stop, sizes.stride[axis])
    return ranges


def _tap(graph: Graph, sizes: Geometry, padded: str, tap: Shape) -> str:
    """What one kernel position sees of the padded input, [., ., *size_out]."""
    full = tuple(size + b + e for size, b, e in zip(sizes.size_in, sizes.begin, sizes.end, strict=True))
    ranges = _tap_ranges(sizes, tap, range(sizes.rank))
    if all(r == (0, full[axis - 2], 1) for axis, r in ranges.items()):
        return padded
    return window(graph, padded, ranges)


def _stack(graph: Graph, sizes: Geometry, parts: list[str], order: str) -> str:
    """dW from matrices that, one below the other, are [taps * in, out] ("io") or [taps * out, in] ("oi")."""
    joined = _join(graph, parts, 0)
    taps, inner, outer = len(sizes.taps), sizes.channels_in // sizes.group, sizes.channels_out
    if order == "io":
        cube = graph.op("Reshape", joined, graph.ints(taps, inner, outer))
        turned = graph.op("Transpose", cube, perm=[2, 1, 0])
    else:
        cube = graph.op("Reshape", joined, graph.ints(taps, outer, inner))
        turned = graph.op("Transpose", cube, perm=[1, 2, 0])
    return graph.op("Reshape", turned, graph.ints(outer, inner, *sizes.kernel))


def dw_per_sample(graph: Graph, sizes: Geometry, x: str, dy: str) -> str:
    """One batched product per tap, [in, positions] @ [positions, out] for each sample, then a sum over samples."""
    flat = graph.ints(0, 0, -1)
    columns = graph.op("Transpose", graph.op("Reshape", dy, flat), perm=[0, 2, 1])
    padded = pad(graph, x, sizes.begin, sizes.end)
    taps = []
    for tap in sizes.taps:
        rows = graph.op("Reshape", _tap(graph, sizes, padded, tap), flat)
        taps.append(graph.op("ReduceSum", graph.op("MatMul", rows, columns), graph.ints(0), keepdims=0))
    return _stack(graph, sizes, taps, "io")


def dw_grouped(graph: Graph, sizes: Geometry, x: str, dy: str) -> str:
    """As per sample, for every group on its own."""
    inner, outer = sizes.channels_in // sizes.group, sizes.channels_out // sizes.group
    columns = graph.op("Reshape", dy, graph.ints(0, sizes.group, outer, -1))
    padded = pad(graph, x, sizes.begin, sizes.end)
    taps = []
    for tap in sizes.taps:
        seen = _tap(graph, sizes, padded, tap)
        rows = graph.op(
            "Transpose", graph.op("Reshape", seen, graph.ints(0, sizes.group, inner, -1)), perm=[0, 1, 3, 2]
        )
        taps.append(graph.op("ReduceSum", graph.op("MatMul", columns, rows), graph.ints(0), keepdims=0))
    return _stack(graph, sizes, taps, "oi")


def dw_channels_first(graph: Graph, sizes: Geometry, x: str, dy: str) -> str:
    """Channels before samples, then one Gemm per tap over all samples and positions."""
    axes = [1, 0, *range(2, 2 + sizes.rank)]
    flat = graph.ints(0, -1)
    rows = graph.op("Reshape", graph.op("Transpose", dy, perm=axes), flat)
    padded = graph.op("Transpose", pad(graph, x, sizes.begin, sizes.end), perm=axes)
    taps = []
    for tap in sizes.taps:
        seen = graph.op("Reshape", _tap(graph, sizes, padded, tap), flat)
        taps.append(graph.op("Gemm", rows, seen, transB=1))
    return _stack(graph, sizes, taps, "oi")


def dw_shifted(graph: Graph, sizes: Geometry, x: str, dy: str) -> str:
    """As per sample, with the taps along the last axis side by side on the channel axis: fewer, larger products."""
    last = sizes.rank - 1
    flat = graph.ints(0, 0, -1)
    columns = graph.op("Transpose", graph.op("Reshape", dy, flat), perm=[0, 2, 1])
    shifted = _side_by_side(graph, sizes, pad(graph, x, sizes.begin, sizes.end))
    products = []
    for tap in product(*(range(size) for size in sizes.kernel[:last])):
        seen = window(graph, shifted, _tap_ranges(sizes, tap, range(last))) if last else shifted
        rows = graph.op("Reshape", seen, flat)
        products.append(graph.op("ReduceSum", graph.op("MatMul", rows, columns), graph.ints(0), keepdims=0))
    return _stack(graph, sizes, products, "io")


def dw_block(graph: Graph, sizes: Geometry, x: str, dy: str) -> str:
    """Images, stride 1: x shifted along its rows, dY shifted down, then one product for all taps."""
    flat = graph.ints(0, 0, -1)
    (top, left), (high, wide), (out_high, out_wide) = sizes.begin, sizes.size_in, sizes.size_out
    beside, below = [], []
    for column in range(sizes.kernel[1]):
        right = column * sizes.dilation[1] - left
        beside.append(pad(graph, x, (0, -right), (0, out_wide - wide + right)))
    for row in range(sizes.kernel[0]):
        down = row * sizes.dilation[0] - top
        below.append(pad(graph, dy, (down, 0), (high - out_high - down, 0)))
    rows = graph.op("Reshape", _join(graph, beside, 1), flat)
    columns = graph.op("Transpose", graph.op("Reshape", _join(graph, below, 1), flat), perm=[0, 2, 1])
    total = graph.op("ReduceSum", graph.op("MatMul", rows, columns), graph.ints(0), keepdims=0)
    height, width = sizes.kernel
    cube = graph.op("Reshape", total, graph.ints(width, sizes.channels_in, height, sizes.channels_out))
    return graph.op("Transpose", cube, perm=[3, 1, 2, 0])


def _join(graph: Graph, parts: list[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else graph.op("Concat", *parts, axis=axis)


def dw_positions_first(graph: Graph, sizes: Geometry, x: str, dy: str) -> str:
    """Positions before samples and channels, so that windows copy whole blocks; then one Gemm per tap."""
    rank = sizes.rank
    order = [*range(2, 2 + rank), 0, 1]
    columns = graph.op("Reshape", graph.op("Transpose", dy, perm=order), graph.ints(-1, sizes.channels_out))
    padded = graph.op("Transpose", x, perm=order)
    if any(sizes.begin) or any(sizes.end):
        padded = graph.op("Pad", padded, graph.ints(*sizes.begin, 0, 0, *sizes.end, 0, 0))
    taps = []
    for tap in sizes.taps:
        ranges = {axis - 2: part for axis, part in _tap_ranges(sizes, tap, range(rank)).items()}
        rows = graph.op("Reshape", window(graph, padded, ranges), graph.ints(-1, sizes.channels_in))
        taps.append(graph.op("Gemm", rows, columns, transA=1))
    return _stack(graph, sizes, taps, "io")


def dw_depthwise(graph: Graph, sizes: Geometry, x: str, dy: str) -> str:
    """One filter per channel: per kernel row the products of all columns with all columns, then their diagonals."""
    top, bottom = sizes.begin[0], sizes.end[0]
    (height, width), wide_in, wide_out = sizes.kernel, sizes.size_in[1], sizes.size_out[1]
    padded = pad(graph, graph.op("Transpose", x, perm=[1, 0, 2, 3]), (top, 0), (bottom, 0))
    rows = graph.op("Reshape", graph.op("Transpose", dy, perm=[1, 0, 2, 3]), graph.ints(0, -1, wide_out))
    left_side = graph.op("Transpose", rows, perm=[0, 2, 1])
    parts = []
    for row in range(height):
        seen = window(graph, padded, _tap_ranges(sizes, (row, 0), [0]))
        pairs = graph.op("MatMul", left_side, graph.op("Reshape", seen, graph.ints(0, -1, wide_in)))
        parts.append(graph.op("Reshape", pairs, graph.ints(0, 1, wide_out * wide_in)))
    joined = _join(graph, parts, 1)
    diagonals = graph.op("MatMul", joined, _seen_columns(graph, sizes))
    return graph.op("Reshape", diagonals, graph.ints(sizes.channels_out, 1, height, width))


def _seen_columns(graph: Graph, sizes: Geometry) -> str:
    """[columns out * columns in, taps]: 1 where this tap of this output sees this input; made by the session itself."""
    wide_in, wide_out, width = sizes.size_in[1], sizes.size_out[1], sizes.kernel[1]
    outs = graph.constant(np.arange(wide_out).reshape(-1, 1, 1) * sizes.stride[1] - sizes.begin[1])
    taps = graph.constant(np.arange(width) * sizes.dilation[1])
    seen = graph.op("Equal", graph.op("Add", outs, taps), graph.constant(np.arange(wide_in).reshape(-1, 1)))
    return graph.op("Reshape", graph.op("Cast", seen, to=1), graph.ints(-1, width))


def _side_by_side(graph: Graph, sizes: Geometry, padded: str) -> str:
    """The taps along the last axis on the channel axis, [N, kernel * in, ..., size_out]."""
    last = sizes.rank - 1
    tap = [0] * sizes.rank
    parts = []
    for column in range(sizes.kernel[last]):
        tap[last] = column
        parts.append(window(graph, padded, _tap_ranges(sizes, tuple(tap), [last])))
    return _join(graph, parts, 1)


def dx_transposed(graph: Graph, sizes: Geometry, weight: str, dy: str) -> str:
    """ConvTranspose with the forward's attributes; works for every size."""
    extra = [
        size - ((out - 1) * s + d * (k - 1) + 1 - b - e)
        for size, out, s, d, k, b, e in zip(
            sizes.size_in,
            sizes.size_out,
            sizes.stride,
            sizes.dilation,
            sizes.kernel,
            sizes.begin,
            sizes.end,
            strict=True,
        )
    ]
    dx: str = graph.op("ConvTranspose", dy, weight, output_padding=extra, **sizes.attrs())
    return dx


def dx_turned(graph: Graph, sizes: Geometry, weight: str, dy: str) -> str:
    """Stride 1: Conv with the kernel turned round and its channels swapped (dense or depthwise)."""
    turned = weight
    if not sizes.depthwise:
        turned = graph.op("Transpose", weight, perm=[1, 0, *range(2, 2 + sizes.rank)])
    if prod(sizes.kernel) > 1:
        axes = range(2, 2 + sizes.rank)
        turned = window(graph, turned, {axis: (-1, np.iinfo(np.int64).min, -1) for axis in axes})
    reach = [d * (k - 1) for d, k in zip(sizes.dilation, sizes.kernel, strict=True)]
    pads = [r - b for r, b in zip(reach, sizes.begin, strict=True)]
    pads += [r - e for r, e in zip(reach, sizes.end, strict=True)]
    return graph.op("Conv", dy, turned, pads=pads, dilations=list(sizes.dilation), group=sizes.group)


def unfold(graph: Graph, sizes: Geometry, x: str) -> str:
    """What each output position sees, [N, in * taps, positions], in the order of the weight."""
    padded = pad(graph, x, sizes.begin, sizes.end)
    flat = graph.ints(0, sizes.channels_in, 1, -1)
    seen = [graph.op("Reshape", _tap(graph, sizes, padded, tap), flat) for tap in sizes.taps]
    rows = sizes.channels_in * len(sizes.taps)
    return graph.op("Reshape", _join(graph, seen, 2), graph.ints(-1, rows, sizes.positions))


def weight_gradient_rows(graph: Graph, sizes: Geometry, x: str, dy: str) -> str:
    """dW of every sample by itself: [N, out * in/group * taps], in the order of the weight."""
    group, inner = sizes.group, sizes.channels_in // sizes.group * len(sizes.taps)
    split = (group,) if group > 1 else ()
    columns = graph.op("Reshape", dy, graph.ints(-1, *split, sizes.channels_out // group, sizes.positions))
    seen = unfold(graph, sizes, x)
    if group > 1:
        seen = graph.op("Reshape", seen, graph.ints(-1, group, inner, sizes.positions))
    axes = [0, 1, 3, 2] if group > 1 else [0, 2, 1]
    made = graph.op("MatMul", columns, graph.op("Transpose", seen, perm=axes))
    return graph.op("Reshape", made, graph.ints(-1, sizes.channels_out * inner))
