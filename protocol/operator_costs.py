"""What one operator call costs, told from shapes alone: its kind and how much there is to do.

The same code counts a graph on the server, for the manifest, and the calls that a device has timed.
"""

import math
from collections.abc import Sequence

Shape = tuple[int, ...]
Amounts = tuple[float, ...]
"""One number for each of FEATURES."""

# calls: 1. flops: multiplications and additions of products. elements: read and written. inner: what a product copies
# on the way (patches of a convolution, matrices packed for a product). spill and flood: elements beyond what a small
# and a large cache hold. repeats: what is done again for every example (weights of a convolution, filters of a
# depthwise one) or piece by piece (rows that are moved, reduced or broadcast one after another).
FEATURES = ("calls", "flops", "elements", "inner", "spill", "flood", "repeats")
CACHE_ELEMENTS = (64 * 1024, 512 * 1024)
# A matrix product works on this many columns at a time, used or not.
TILE = 16

_CONVOLUTIONS = {"Conv", "FusedConv", "ConvTranspose"}
_PRODUCTS = {"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "TransposeMatMul"}
_RECURRENT = {"LSTM", "GRU", "RNN"}
_BROADCASTS = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Where", "Equal", "Greater", "Less"}
_ROW_BY_ROW = {"LayerNormalization", "Softmax", "LogSoftmax"}
# What onnxruntime makes of an operator when it fuses it with a neighbour.
_SAME = {"FusedConv": "Conv", "FusedMatMul": "MatMul", "FusedGemm": "Gemm", "TransposeMatMul": "MatMul"}
# Only the shape changes; the runtime moves nothing.
_FREE = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "Constant"}
# Data, starts, ends, axes; a fifth input are the steps.
_SLICE_INPUTS = 4


def features(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[str, Amounts]:
    """The kind of one operator call and its FEATURES."""
    moved = float(sum(math.prod(shape) for shape in (*inputs, *outputs)))
    if op in _FREE:
        return "shape", (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    if op in _CONVOLUTIONS and len(inputs) > 1 and outputs:
        return _convolution(op, inputs, outputs[0], moved)
    if op in _PRODUCTS and inputs and inputs[0] and outputs:
        return _product(op, inputs, outputs[0], moved)
    if op in _RECURRENT and len(inputs) > 2 and len(inputs[0]) == 3:
        steps, batch = inputs[0][:2]
        weights = float(math.prod(inputs[1]) + math.prod(inputs[2]))
        return op, (float(steps), 2.0 * steps * batch * weights, moved, steps * weights, *_beyond(moved), 0.0)
    if op == "Scan":
        return _scan(inputs, outputs, moved)
    return op + _variant(op, inputs, outputs), (1.0, 0.0, moved, 0.0, *_beyond(moved), _pieces(op, inputs, outputs))


def _beyond(elements: float) -> tuple[float, float]:
    """Spill and flood."""
    small, large = CACHE_ELEMENTS
    return max(0.0, elements - small), max(0.0, elements - large)


def _scan(inputs: Sequence[Shape], outputs: Sequence[Shape], moved: float) -> tuple[str, Amounts]:
    """A loop over time: its states are [units, batch], the largest of its series has all gates of all steps."""
    read, written = ([shape for shape in side if len(shape) == 3] for side in (inputs, outputs))
    units = max((shape[0] for shape in inputs if len(shape) == 2), default=1)
    # Backwards it reads what the way forward kept, step by step; forward it writes so.
    kind, by_step = ("Scan", written) if len(read) < 2 else ("Scan back", read)
    steps = max(1, max((shape[0] for shape in by_step), default=1))
    gates = max((math.prod(shape) for shape in (*read, *written)), default=steps) / steps
    inner = steps * units * 4.0 * units
    return kind, (float(steps), 2.0 * steps * gates * units, moved, inner, *_beyond(moved), 0.0)


def _convolution(op: str, inputs: Sequence[Shape], out: Shape, moved: float) -> tuple[str, Amounts]:
    image, weight = inputs[0], inputs[1]
    taps = math.prod(weight[1:])
    # A transposed one multiplies each entry it reads, a plain one makes each entry it writes.
    many = image if op == "ConvTranspose" else out
    places = math.ceil(math.prod(many[2:]) / TILE) * TILE
    made = float(many[0] * many[1] * places)
    repeats = float(many[0] * math.prod(weight))
    kind = _SAME.get(op, op)
    if kind == "Conv" and weight[1] == 1 and weight[0] > 1 and image[1] == weight[0]:
        kind, repeats = "Conv depthwise", float(many[0] * weight[0])
    elif (image[1] != weight[1]) if kind == "Conv" else (out[1] != weight[1]):
        kind += " grouped"
    elif math.prod(weight[2:]) == 1:
        kind += " 1x1"
    elif kind == "Conv" and len(out) == 3:
        kind += " series"
    elif kind == "Conv" and 3 * out[2] < 2 * image[2]:
        # Patches that lie apart are gathered entry by entry.
        kind += " apart"
    # One image after another stays in the cache, however many there are.
    return kind, (1.0, 2.0 * made * taps, moved, made / max(1, many[1]) * taps, 0.0, 0.0, repeats)


def _product(op: str, inputs: Sequence[Shape], out: Shape, moved: float) -> tuple[str, Amounts]:
    left = inputs[0]
    columns = out[-1] if out else 1
    # A trace is silent about a constant matrix that the runtime has packed beforehand.
    right = inputs[1] if len(inputs) > 1 else (left[-1], columns)
    if len(inputs) == 1:
        moved += math.prod(right)
    rows = math.prod(out) / max(1, columns)
    depth = math.sqrt(math.prod(left) * math.prod(right) / max(1.0, rows * columns)) if len(out) == 2 else left[-1]
    if op == "FusedMatMul" and len(out) > 2:
        depth = math.prod(left) / max(1.0, rows)
    several = len(out) > 2 and len(right) > 2
    calls = float(math.prod(out[:-2])) if several else 1.0
    kind = _SAME.get(op, op) + (" many" if several else "")
    if rows <= calls:
        # One row is multiplied as it is.
        return f"{kind} row", (calls, 2.0 * rows * columns * depth, moved, 0.0, *_beyond(moved), 0.0)
    # Each matrix on the right is packed in whole tiles first.
    packed = math.ceil(columns / TILE) * TILE * depth
    spill, flood = _beyond(packed)
    return kind, (calls, 2.0 * rows * packed, moved, calls * packed, calls * spill, calls * flood, 0.0)


def _variant(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> str:
    """Operators of one name that run through different code: broadcasts, and what a reduction leaves."""
    if not inputs or not outputs:
        return ""
    source, out = inputs[0], outputs[0]
    if op.startswith("Reduce"):
        if len(source) <= 1:
            return " all"
        kept_last = bool(out) and out[-1] == source[-1] and source[-1] > 1
        return " rows" if kept_last else " columns"
    if op == "Transpose":
        return f" {len(source)}{' kept' if _unmoved(source, out) > 1 else ''}"
    if op == "Slice":
        if source == out:
            return " flip"
        return " apart" if len(inputs) > _SLICE_INPUTS else ""
    wide = {shape for shape in inputs if math.prod(shape) > 1}
    return " broadcast" if op in _BROADCASTS and len(inputs) > 1 and len(wide) > 1 else ""


def _pieces(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """How many pieces an operator works on one after another; 0 where all is one piece."""
    if not inputs or not outputs or not inputs[0]:
        return 0.0
    source, out = inputs[0], outputs[0]
    if op == "Transpose":
        return math.prod(out) / _unmoved(source, out)
    if op in ("Slice", "Split"):
        # With steps even neighbours are taken one by one.
        together = _same_end if len(inputs) > _SLICE_INPUTS else _run
        return sum(math.prod(shape) / together(source, shape) for shape in outputs)
    if op in ("Concat", "Pad"):
        return math.prod(out) / _run(out, source)
    if op in _BROADCASTS or op == "Expand":
        wide = [shape for shape in inputs if math.prod(shape) > 1 and shape != out]
        return math.prod(out) / min(_span(shape, out) for shape in wide) if wide else 0.0
    if op in _ROW_BY_ROW or op.startswith("Reduce"):
        return math.prod(source) / max(1, source[-1])
    return 0.0


def _same_end(source: Shape, out: Shape) -> int:
    """Entries in the dimensions at the end that both have alike."""
    together = 1
    for before, after in zip(reversed(source), reversed(out), strict=False):
        if before != after:
            break
        together *= after
    return max(1, together)


def _run(source: Shape, out: Shape) -> int:
    """Entries of `out` that lie side by side in `source`: the dimensions alike at the end, and a part of the next."""
    together = 1
    for before, after in zip(reversed(source), reversed(out), strict=False):
        together *= after
        if before != after:
            break
    return max(1, together)


def _unmoved(source: Shape, out: Shape) -> int:
    """Entries that a transposition moves together; of equal shapes the largest dimension that comes twice is turned."""
    if source != out:
        return _same_end(source, out)
    twice = [size for size in source if source.count(size) > 1]
    if not twice:
        return max(1, math.prod(source))
    last = len(source) - 1 - source[::-1].index(max(twice))
    return max(1, math.prod(source[last + 1 :]))


def _span(shape: Shape, out: Shape) -> int:
    """Entries of `out` at the end over which an operand is either there in full or one and the same."""
    aligned = (1,) * (len(out) - len(shape)) + shape
    together, repeated = 1, None
    for size, after in zip(reversed(aligned), reversed(out), strict=True):
        if after == 1:
            continue
        if repeated is not None and (size != after) != repeated:
            break
        repeated = size != after
        together *= after
    return max(1, together)
