"""How operators that compute change what is known of a tensor: where samples are summed, and where they stay apart."""

from collections.abc import Sequence

from fedwright.protocol.dataflow.shapes import axis_of, fixed_numbers, ints, whole
from fedwright.protocol.dataflow.values import Dim, Kind, Rows, Value, broadcast, spoilt, stretched, with_dims
from fedwright.protocol.onnx_outline import Node

# Whatever the largest entry is, others weigh as much: sums, means, and norms of them.
SUMMING = frozenset({"ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2"})


def elementwise(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Entry by entry."""
    return [broadcast(inputs, node.operator)]


def dequantize(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Packed numbers of the graph itself; samples are never packed."""
    if any(value.kind != Kind.FIXED for value in inputs):
        return [spoilt(inputs, "DequantizeLinear of samples")]
    return [Value(Kind.FIXED, inputs[0].dims)]


def reduce(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Over some axes or all."""
    data = inputs[0]
    axes = ints(node, "axes") or (fixed_numbers(inputs[1]) if len(inputs) > 1 else ())
    if data.dims is None or axes is None:
        return [spoilt(inputs, f"{node.operator} over axes that are not named")]
    if not axes and whole(node, "noop_with_empty_axes", 0):
        return [data]
    rank = len(data.dims)
    gone = {axis % rank for axis in axes} if rank else set()
    return [_without(node, data, gone or set(range(rank)), keep=bool(whole(node, "keepdims", 1)))]


def _without(node: Node, data: Value, gone: set[int], *, keep: bool) -> Value:
    dims = data.dims or ()
    left: list[Dim] = [1 if at in gone else dim for at, dim in enumerate(dims) if keep or at not in gone]
    if data.rows_axis() not in gone:
        return data._replace(dims=tuple(left), numbers=None, scales=None)
    if data.kind == Kind.ROWS and node.operator in SUMMING:
        return Value(Kind.SUM, tuple(left))
    if data.kind in (Kind.FIXED, Kind.SUM):
        return Value(data.kind, tuple(left))
    if data.kind == Kind.PLACED:
        return Value(Kind.FIXED, tuple(left))
    return spoilt([data], f"{node.operator} over the samples picks single ones")


def arg(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """ArgMax, ArgMin: the place of the largest entry, not among samples."""
    data = inputs[0]
    if data.dims is None:
        return [spoilt(inputs, node.operator)]
    return [_without(node, data, {axis_of(node, data)}, keep=bool(whole(node, "keepdims", 1)))]


def along(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Softmax and the like: of one shape, and entries along an axis depend on one another."""
    data = inputs[0]
    axis = axis_of(node, data, -1)
    if data.dims is None or data.rows_axis() == axis:
        return [spoilt(inputs, f"{node.operator} along the samples")]
    return [data._replace(numbers=None, scales=None)]


def cumsum(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Running sums, not along samples."""
    data, axes = inputs[0], fixed_numbers(inputs[1])
    if data.dims is None or not axes or data.rows_axis() == axes[0] % len(data.dims):
        return [spoilt(inputs, "CumSum along the samples")]
    return [data._replace(numbers=None)]


def top(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """TopK: the largest entries and their places, not among samples."""
    data, count = inputs[0], fixed_numbers(inputs[1])
    axis = axis_of(node, data, -1)
    if data.dims is None or not count or data.rows_axis() == axis:
        return [spoilt(inputs, "TopK among the samples")] * 2
    found = data._replace(dims=(*data.dims[:axis], count[0], *data.dims[axis + 1 :]), numbers=None)
    return [found, found]


def layer_norm(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Over the last axes of each sample."""
    data, axis = inputs[0], axis_of(node, inputs[0], -1)
    rows = data.rows_axis()
    plain = all(value.kind <= Kind.SUM and value.rows_axis() is None for value in inputs[1:])
    if data.dims is None or not plain or (rows is not None and rows >= axis):
        return [spoilt(inputs, node.operator)] * len(node.outputs)
    normed = with_dims(inputs, data.dims, node.operator)
    rest = with_dims(inputs, [1 if at >= axis else dim for at, dim in enumerate(data.dims)], node.operator)
    return [normed, rest, rest][: len(node.outputs)]


def matmul(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Products of matrices: summed over the samples where both sides have them there."""
    return [_product(inputs[0], inputs[1], node.operator)]


def gemm(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """A' B' + C."""
    sides = []
    for value, name in zip(inputs, ("transA", "transB"), strict=False):
        turned = bool(whole(node, name, 0)) and value.dims is not None
        sides.append(value._replace(dims=tuple((value.dims or ())[::-1])) if turned else value)
    made = _product(sides[0], sides[1], "Gemm")
    return [broadcast([made, inputs[2]], "Gemm") if len(inputs) > 2 else made]


def _product(left: Value, right: Value, why: str) -> Value:
    if not left.dims or not right.dims:
        return spoilt([left, right], why)
    one, other = len(left.dims) == 1, len(right.dims) == 1
    a = (1, *left.dims) if one else left.dims
    b = (*right.dims, 1) if other else right.dims
    over = {a[-1], b[-2]}
    outer = stretched([a[:-2], b[:-2]])
    if outer is None:
        return spoilt([left, right], f"{why} pairs samples with entries that are told apart by their place")
    made: list[Dim] = [*outer, *([] if one else [a[-2]]), *([] if other else [b[-1]])]
    return contracted([left, right], over, made, why)


def contracted(inputs: Sequence[Value], over: set[Dim], made: Sequence[Dim], why: str) -> Value:
    """Products summed over axes of these lengths."""
    if not any(isinstance(dim, Rows) for dim in over):
        return with_dims(inputs, made, why)
    if len(over) > 1:
        return spoilt(inputs, f"{why} weighs samples by their place")
    if any(isinstance(dim, Rows) for dim in made):
        return spoilt(inputs, f"{why} pairs each sample with each other one")
    kinds = {value.kind for value in inputs}
    if Kind.SINGLE in kinds or Kind.LINKS in kinds or (Kind.PLACED in kinds and kinds != {Kind.PLACED, Kind.FIXED}):
        return spoilt(inputs, f"{why} weighs samples by their place")
    return Value(Kind.SUM if kinds & {Kind.ROWS, Kind.SUM} else Kind.FIXED, tuple(made))


def einsum(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Sums of products by letters."""
    equation = str(node.attributes.get("equation", "")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) != len(inputs):
        return [spoilt(inputs, "Einsum")]
    met: dict[str, set[Dim]] = {}
    for term, value in zip(terms, inputs, strict=True):
        if value.dims is None or len(term) != len(value.dims) or len(set(term)) != len(term):
            return [spoilt(inputs, "Einsum")]
        for letter, dim in zip(term, value.dims, strict=True):
            met.setdefault(letter, set()).add(dim)
    if any(len(dims) > 1 and any(isinstance(dim, Rows) for dim in dims) for dims in met.values()):
        return [spoilt(inputs, "Einsum weighs samples by their place")]
    over: set[Dim] = {dim for letter, dims in met.items() if letter not in right for dim in dims}
    rows: set[Dim] = {dim for dim in over if isinstance(dim, Rows)}
    made = [next(iter(met.get(letter, {None}))) for letter in right]
    return [contracted(inputs, rows, made, "Einsum")]


def _window(node: Node, dims: Sequence[Dim], kernel: Sequence[int]) -> list[Dim]:
    """Sizes of what a moving window leaves."""
    rank = len(kernel)
    strides, dilations = ints(node, "strides", [1] * rank), ints(node, "dilations", [1] * rank)
    pads = ints(node, "pads", [0] * 2 * rank)
    if str(node.attributes.get("auto_pad", "NOTSET")) not in ("NOTSET", "VALID") or len(dims) != rank:
        return [None] * len(dims)
    made: list[Dim] = []
    for at, dim in enumerate(dims):
        if not isinstance(dim, int):
            made.append(None)
            continue
        room = dim + pads[at] + pads[at + rank] - dilations[at] * (kernel[at] - 1) - 1
        made.append((-(-room // strides[at]) if whole(node, "ceil_mode", 0) else room // strides[at]) + 1)
    return made


def pool(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """A window over each image; its second result counts places over the whole batch."""
    data = inputs[0]
    rows = data.rows_axis()
    if data.dims is None or (rows is not None and rows > 1):
        return [spoilt(inputs, f"{node.operator} along the samples")] * len(node.outputs)
    made = data._replace(dims=(*data.dims[:2], *_window(node, data.dims[2:], ints(node, "kernel_shape"))), numbers=None)
    return [made, spoilt(inputs, "places of MaxPool")][: len(node.outputs)]


def global_pool(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """One figure for each channel of each image."""
    data = inputs[0]
    rows = data.rows_axis()
    if data.dims is None or (rows is not None and rows > 1):
        return [spoilt(inputs, f"{node.operator} along the samples")]
    return [data._replace(dims=(*data.dims[:2], *[1] * (len(data.dims) - 2)), numbers=None)]


def conv(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Images with kernels; as the gradient of kernels it sums over samples that stand as channels."""
    data, kernel = inputs[:2]
    bias = inputs[2:]
    if data.dims is None or kernel.dims is None or any(value.kind > Kind.SUM for value in bias):
        return [spoilt(inputs, node.operator)]
    back, groups = node.operator == "ConvTranspose", whole(node, "group", 1)
    shape = [dim if isinstance(dim, int) else 0 for dim in kernel.dims[2:]]
    inner = [*data.dims[2:], *kernel.dims[2:]]
    if any(isinstance(dim, Rows) for dim in (*inner, *(dim for value in bias for dim in value.dims or ()))):
        return [spoilt(inputs, f"{node.operator} along the samples")]
    taken, given = (kernel.dims[0], kernel.dims[1]) if back else (kernel.dims[1], kernel.dims[0])
    spatial = (_unwindow if back else _window)(node, data.dims[2:], shape)
    if back:
        given = given * groups if isinstance(given, int) else given
    if groups != 1 and any(isinstance(dim, Rows) for dim in (data.dims[1], taken, given)):
        return [spoilt(inputs, f"{node.operator} in groups of samples")]
    over: set[Dim] = {dim for dim in (data.dims[1], taken) if isinstance(dim, Rows)}
    if over and data.dims[1] != taken:
        return [spoilt(inputs, f"{node.operator} weighs samples by their place")]
    return [contracted([data, kernel], over, [data.dims[0], given, *spatial], node.operator)]


def _unwindow(node: Node, dims: Sequence[Dim], kernel: Sequence[int]) -> list[Dim]:
    rank = len(kernel)
    if "output_shape" in node.attributes or "auto_pad" in node.attributes or len(dims) != rank:
        return [None] * rank
    strides, dilations = ints(node, "strides", [1] * rank), ints(node, "dilations", [1] * rank)
    pads, more = ints(node, "pads", [0] * 2 * rank), ints(node, "output_padding", [0] * rank)
    return [
        strides[at] * (dim - 1) + more[at] + dilations[at] * (kernel[at] - 1) + 1 - pads[at] - pads[at + rank]
        if isinstance(dim, int)
        else None
        for at, dim in enumerate(dims)
    ]


def batch_norm(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """By the mean and variance over samples (training), or by those that it is given."""
    data = inputs[0]
    plain = all(value.kind <= Kind.SUM and value.rows_axis() is None for value in inputs[1:])
    if data.dims is None or not plain or data.rows_axis() not in (None, 0):
        return [spoilt(inputs, node.operator)] * len(node.outputs)
    training = node.operator == "BatchNormalization" and whole(node, "training_mode", 0)
    made = with_dims(inputs, data.dims, node.operator)
    summed = Kind.SUM if training else max((value.kind for value in inputs[1:]), default=Kind.FIXED)
    return [made, *[Value(summed, data.dims[1:2])] * (len(node.outputs) - 1)]


def one_hot(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """A one at the place that each entry names."""
    data, depth = inputs[0], fixed_numbers(inputs[1])
    if data.dims is None or depth is None or any(value.kind > Kind.SUM for value in inputs[1:]):
        return [spoilt(inputs, "OneHot")]
    rank = len(data.dims) + 1
    axis = whole(node, "axis", -1) % rank
    return [with_dims(inputs[:1], [*data.dims[:axis], depth[0], *data.dims[axis:]], "OneHot")]


def recurrent(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """LSTM, GRU: sequences [steps, samples, width] one sample beside the other."""
    data, weights = inputs[0], inputs[1:4]
    hidden = whole(node, "hidden_size", 0)
    ways = 2 if node.attributes.get("direction") == "bidirectional" else 1
    starts = [value for value in inputs[4:] if value.dims != ()]
    plain = all(value.kind <= Kind.SUM and value.rows_axis() is None for value in weights)
    same = all(value.rows_axis() == 1 and value.dims is not None and len(value.dims) == 3 for value in starts)
    if data.dims is None or data.rows_axis() != 1 or not plain or not same or whole(node, "layout", 0):
        return [spoilt(inputs, node.operator)] * len(node.outputs)
    kept: list[Dim] = [ways, data.dims[1], hidden]
    made = [with_dims(inputs, [data.dims[0], *kept], node.operator), with_dims(inputs, kept, node.operator)]
    return [*made, made[1]][: len(node.outputs)]


def depth_to_space(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Channels as places and back, of each image."""
    data = inputs[0]
    if data.dims is None or data.rows_axis() not in (None, 0):
        return [spoilt(inputs, node.operator)]
    block = whole(node, "blocksize", 1)
    channels, *places = (dim if isinstance(dim, int) else None for dim in data.dims[1:])
    if node.operator == "DepthToSpace":
        made = [channels and channels // block**2, *(place and place * block for place in places)]
    else:
        made = [channels and channels * block**2, *(place and place // block for place in places)]
    return [data._replace(dims=(data.dims[0], *made), numbers=None)]


def triangle(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Trilu: of the last two axes."""
    data, rows = inputs[0], inputs[0].rows_axis()
    if data.dims is None or (rows is not None and rows >= len(data.dims) - 2):
        return [spoilt(inputs, "Trilu along the samples")]
    return [data._replace(numbers=None)]
