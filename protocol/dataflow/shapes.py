"""How operators that move entries about change what is known of a tensor: reshape, slice, gather, concatenate."""

from collections.abc import Sequence

from fedwright.protocol.dataflow.values import (
    Dim,
    Kind,
    Length,
    Number,
    Rows,
    Value,
    as_numbers,
    broadcast,
    product,
    spoilt,
    with_dims,
)
from fedwright.protocol.onnx_outline import Node, Tensor

# Scripts write "to the end" as the largest number there is.
_ENDLESS = 2**31 - 1


def ints(node: Node, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    """An attribute that is a list of numbers."""
    found = node.attributes.get(name, tuple(default))
    return found if isinstance(found, tuple) and not isinstance(found, Tensor) else tuple(default)


def whole(node: Node, name: str, default: int) -> int:
    """An attribute that is a number."""
    found = node.attributes.get(name, default)
    return found if isinstance(found, int) else default


def fixed_numbers(value: Value | None) -> tuple[int, ...] | None:
    """The entries of an input that stands in the graph, none of them a number of samples."""
    if value is None or value.numbers is None:
        return None
    found = tuple(number for number in value.numbers if isinstance(number, int))
    return found if len(found) == len(value.numbers) else None


def axis_of(node: Node, value: Value, default: int = 0) -> int:
    """The axis that an operator works along, counted from the front."""
    axis = whole(node, "axis", default)
    return axis + len(value.dims or ()) if axis < 0 else axis


def shape(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Its shape tells nothing of what a tensor holds."""
    (data,) = inputs
    if data.dims is None:
        return [Value(Kind.FIXED, (None,))]
    end = whole(node, "end", len(data.dims))
    numbers = as_numbers(data.dims)[whole(node, "start", 0) : end]
    return [Value(Kind.FIXED, (len(numbers),), numbers)]


def size(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """How many entries there are."""
    numbers = None if inputs[0].dims is None else as_numbers(inputs[0].dims)
    return [Value(Kind.FIXED, (), None if numbers is None else (_multiplied(numbers),))]


def _multiplied(numbers: Sequence[Number]) -> Number:
    total: Number = 1
    for number in numbers:
        if total is None or number is None or (isinstance(total, Length) and isinstance(number, Length)):
            return None
        if isinstance(number, Length):
            total = Length(number.times * (total if isinstance(total, int) else 1), number.of)
        elif isinstance(total, Length):
            total = Length(total.times * number, total.of)
        else:
            total *= number
    return total


def transpose(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Axes in another order."""
    (data,) = inputs
    if data.dims is None:
        return [spoilt(inputs, "Transpose")]
    perm = ints(node, "perm", range(len(data.dims))[::-1])
    if sorted(perm) != list(range(len(data.dims))):
        return [spoilt(inputs, "Transpose")]
    return [data._replace(dims=tuple(data.dims[at] for at in perm), numbers=None)]


def reshape(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """The same entries in another shape, as it stands in the graph or comes from another shape."""
    data, target = inputs
    if target.numbers is None or whole(node, "allowzero", 0):
        return [spoilt(inputs, "Reshape to a computed shape")]
    wanted = list(target.numbers)
    for at, number in enumerate(wanted):
        if number == 0:
            kept = data.dims[at] if data.dims is not None and at < len(data.dims) else None
            wanted[at] = kept.length if isinstance(kept, Rows) else kept
    return [reshaped(data, wanted)]


def flatten(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """A matrix: axes before and from the given one."""
    (data,) = inputs
    if data.dims is None:
        return [spoilt(inputs, "Flatten")]
    axis = axis_of(node, data, 1)
    numbers = as_numbers(data.dims)
    return [reshaped(data, [_multiplied(numbers[:axis]), _multiplied(numbers[axis:])])]


def reshaped(data: Value, wanted: Sequence[Number]) -> Value:
    """A tensor in the wanted shape; samples stay whole along one axis, or are lost sight of."""
    lost = spoilt([data], "Reshape breaks up the axis over samples")
    if data.dims is None:
        return _only_free(lost, wanted)
    at = data.rows_axis()
    if at is None:
        return _reshaped_plain(data, wanted, lost)
    axis, before, after = data.dims[at], product(data.dims[:at]), product(data.dims[at + 1 :])
    if not isinstance(axis, Rows) or before is None or after is None:
        return lost
    before, after = before * axis.outer, after * axis.inner
    wanted = _resolved(wanted, before * after)
    place = _sample_axis(wanted)
    if place is None:
        return lost
    ahead, behind = product(_plain(wanted[:place])), product(_plain(wanted[place + 1 :]))
    if not ahead or not behind or before % ahead or after % behind:
        return lost
    rows = Rows(before // ahead, after // behind, axis.of)
    if isinstance(wanted[place], Length) and wanted[place] != rows.length:
        return lost
    dims: list[Dim] = [*_plain(wanted[:place]), rows, *_plain(wanted[place + 1 :])]
    return data._replace(dims=tuple(dims), numbers=None)


def _plain(numbers: Sequence[Number]) -> list[Dim]:
    return [number if isinstance(number, int) and number > 0 else None for number in numbers]


def _resolved(wanted: Sequence[Number], entries: int) -> list[Number]:
    """A shape that names the samples, with its free axis as a number; entries: of one sample."""
    named = [number.times for number in wanted if isinstance(number, Length)]
    rest = product([number for number in wanted if isinstance(number, int) and number != -1])
    if len(named) != 1 or -1 not in wanted or not rest or entries % (rest * named[0]):
        return list(wanted)
    return [entries // (rest * named[0]) if number == -1 else number for number in wanted]


def _sample_axis(wanted: Sequence[Number]) -> int | None:
    """Which axis of a wanted shape is over samples: the one named so, else the free one."""
    named = [at for at, number in enumerate(wanted) if isinstance(number, Length)]
    free = [at for at, number in enumerate(wanted) if number == -1]
    if len(named) == 1 and not free:
        return named[0]
    return free[0] if len(free) == 1 and not named else None


def _only_free(lost: Value, wanted: Sequence[Number]) -> Value:
    """Nothing is known of what went in, but a shape without free axes is known."""
    if lost.kind in (Kind.FIXED, Kind.SUM) and all(isinstance(number, int) and number > 0 for number in wanted):
        return lost._replace(dims=tuple(_plain(wanted)))
    return lost


def _reshaped_plain(data: Value, wanted: Sequence[Number], lost: Value) -> Value:
    if any(isinstance(number, Length) for number in wanted):
        # Entries become samples' companions by their place.
        return spoilt([data, Value(Kind.PLACED)], "Reshape lays entries along the samples")
    total, dims = product(data.dims or ()), list(_plain(wanted))
    rest = product([dim for dim, number in zip(dims, wanted, strict=True) if number != -1])
    if total is not None and rest:
        dims = [total // rest if number == -1 else dim for dim, number in zip(dims, wanted, strict=True)]
    numbers = data.numbers if len(dims) <= 1 else None
    return lost._replace(kind=data.kind, why=data.why, dims=tuple(dims), numbers=numbers, scales=None)


def squeeze(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Without axes of length one."""
    data = inputs[0]
    axes = fixed_numbers(inputs[1]) if len(inputs) > 1 else None
    if data.dims is None or axes is None:
        return [spoilt(inputs, "Squeeze of axes that are not named")]
    gone = {axis % len(data.dims) for axis in axes} if data.dims else set()
    if any(data.dims[axis] != 1 for axis in gone):
        return [spoilt(inputs, "Squeeze of an axis over samples")]
    return [data._replace(dims=tuple(dim for at, dim in enumerate(data.dims) if at not in gone))]


def unsqueeze(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """With further axes of length one."""
    data, axes = inputs[0], fixed_numbers(inputs[1])
    if data.dims is None or axes is None:
        return [spoilt(inputs, "Unsqueeze of axes that are not named")]
    rank = len(data.dims) + len(axes)
    new, old = {axis % rank for axis in axes}, iter(data.dims)
    numbers = data.numbers if rank <= 1 else None
    return [data._replace(dims=tuple(1 if at in new else next(old, None) for at in range(rank)), numbers=numbers)]


def expand(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Stretched to a shape; along samples every one gets the same."""
    data, target = inputs
    if target.numbers is None or data.dims is None:
        return [spoilt(inputs, "Expand to a computed shape")]
    dims: list[Dim] = []
    missing = len(target.numbers) - len(data.dims)
    for at, number in enumerate(target.numbers):
        own = data.dims[at - missing] if at >= missing else None
        same = isinstance(own, Rows) and isinstance(number, Length) and number == own.length
        dims.append(own if same else Rows(number.times, 1, number.of) if isinstance(number, Length) else number)
    stretched = broadcast([data._replace(kind=Kind.FIXED, why=""), Value(Kind.FIXED, tuple(dims))], "Expand")
    if data.kind == Kind.LINKS and stretched.kind == Kind.FIXED and stretched.dims is not None:
        return [data._replace(dims=stretched.dims)]
    return [broadcast([data, Value(Kind.FIXED, tuple(dims))], "Expand")]


def constant_of_shape(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """One number everywhere."""
    numbers = inputs[0].numbers
    if numbers is None or sum(isinstance(number, Length) for number in numbers) > 1:
        return [spoilt(inputs, "ConstantOfShape")]
    dims = [Rows(number.times, 1, number.of) if isinstance(number, Length) else number for number in numbers]
    return [Value(Kind.FIXED, tuple(dims))]


def value_range(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Whole numbers in their order: over samples they tell places apart."""
    ends = [value.numbers[0] if value.numbers else None for value in inputs]
    if all(isinstance(end, int) for end in ends) and ends[2]:
        start, limit, step = (end for end in ends if isinstance(end, int))
        return [spoilt(inputs, "Range")._replace(dims=(max(0, -((start - limit) // step)),))]
    if ends[0] == 0 and ends[2] == 1 and isinstance(ends[1], Length):
        return [Value(Kind.PLACED, (Rows(ends[1].times, 1, ends[1].of),))]
    return [spoilt([*inputs, Value(Kind.PLACED)], "Range")]


def piece(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Slice: along the samples all or nothing."""
    data = inputs[0]
    starts, ends = (fixed_numbers(value) for value in inputs[1:3])
    rank = len(data.dims or ())
    axes = fixed_numbers(inputs[3]) if len(inputs) > 3 else tuple(range(len(starts or ())))
    steps = fixed_numbers(inputs[4]) if len(inputs) > 4 else (1,) * len(starts or ())
    if data.dims is None or starts is None or ends is None or axes is None or steps is None:
        return [spoilt(inputs, "Slice from a computed place")]
    dims = list(data.dims)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=False):
        dim = dims[axis % rank] if rank else None
        if isinstance(dim, Rows):
            if (start, step) != (0, 1) or end < _ENDLESS:
                return [spoilt(inputs, "Slice takes some of the samples")]
            continue
        dims[axis % rank] = None if dim is None else len(range(dim)[slice(start, _end(end, step), step)])
    numbers = data.numbers
    if numbers is not None:
        numbers = numbers[slice(starts[0], _end(ends[0], steps[0]), steps[0])] if len(dims) == 1 else None
    return [data._replace(dims=tuple(dims), numbers=numbers)]


def _end(end: int, step: int) -> int | None:
    """Far below the beginning means that the beginning is still taken."""
    return None if step < 0 and end < -_ENDLESS // 2 else end


def split(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Pieces along an axis."""
    data, count = inputs[0], len(node.outputs)
    sizes = fixed_numbers(inputs[1]) if len(inputs) > 1 else None
    axis = axis_of(node, data)
    if data.dims is None or axis >= len(data.dims) or isinstance(data.dims[axis], Rows):
        return [spoilt(inputs, "Split parts the samples")] * count
    whole_dim = data.dims[axis]
    if len(inputs) < 2 and isinstance(whole_dim, int) and whole_dim % count == 0:
        sizes = (whole_dim // count,) * count
    dims: list[Dim] = list(sizes) if sizes is not None else [None] * count
    return [data._replace(dims=(*data.dims[:axis], dim, *data.dims[axis + 1 :]), numbers=None) for dim in dims[:count]]


def concat(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """One behind the other along an axis that is not over samples, or numbers of a shape."""
    if any(value.dims is None for value in inputs):
        return [spoilt(inputs, "Concat")]
    first = inputs[0].dims or ()
    axis = axis_of(node, inputs[0])
    if len(first) == 1 and all(value.numbers is not None for value in inputs):
        numbers = tuple(number for value in inputs for number in value.numbers or ())
        return [Value(max(value.kind for value in inputs), (len(numbers),), numbers)]
    along = [(value.dims or ())[axis] if axis < len(value.dims or ()) else None for value in inputs]
    if any(isinstance(dim, Rows) for dim in along):
        return [_behind_one_another(inputs, axis)]
    ends = [value._replace(dims=(*(value.dims or ())[:axis], 1, *(value.dims or ())[axis + 1 :])) for value in inputs]
    joined = broadcast(ends, "Concat")
    if joined.dims is None:
        return [joined]
    known = product(along)
    total = None if known is None else sum(dim for dim in along if isinstance(dim, int))
    return [joined._replace(dims=(*joined.dims[:axis], total, *joined.dims[axis + 1 :]))]


def _behind_one_another(inputs: Sequence[Value], axis: int) -> Value:
    """All samples once for each input: every sample stands in as many places, in the same way as the others."""
    dims = list(inputs[0].dims or ())
    dim, kinds = dims[axis], {value.kind for value in inputs}
    alike = all(value.dims == inputs[0].dims for value in inputs)
    followed = kinds == {Kind.LINKS} or kinds <= {Kind.FIXED, Kind.SUM, Kind.ROWS}
    if not isinstance(dim, Rows) or not alike or not followed:
        return spoilt(inputs, "Concat puts samples among other entries")
    dims[axis] = Rows(dim.outer * len(inputs), dim.inner, dim.of)
    return Value(max(kinds), tuple(dims))


def pad(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Margins, but none along the samples."""
    data, pads = inputs[0], fixed_numbers(inputs[1])
    if data.dims is None or pads is None:
        return [spoilt(inputs, "Pad by a computed margin")]
    axes = fixed_numbers(inputs[3]) if len(inputs) > 3 else tuple(range(len(data.dims)))
    if axes is None or len(pads) != 2 * len(axes):
        return [spoilt(inputs, "Pad by a computed margin")]
    dims = list(data.dims)
    for at, axis in enumerate(axes):
        margin, dim = pads[at] + pads[at + len(axes)], dims[axis % len(dims)]
        if isinstance(dim, Rows):
            if pads[at] or pads[at + len(axes)]:
                return [spoilt(inputs, "Pad along the samples")]
            continue
        dims[axis % len(dims)] = None if dim is None else dim + margin
    return [with_dims(inputs[:1], dims, "Pad")]


def where(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """One of two, entry by entry; of numbers of a shape too."""
    made = broadcast(inputs, "Where")
    choice = fixed_numbers(inputs[0])
    if choice is None or any(value.numbers is None or len(value.numbers) != len(choice) for value in inputs[1:]):
        return [made]
    yes, no = (value.numbers or () for value in inputs[1:])
    return [made._replace(numbers=tuple(a if c else b for c, a, b in zip(choice, yes, no, strict=True)))]


def times(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """Products, entry by entry; of single numbers too."""
    made = broadcast(inputs, "Mul")
    numbers = [value.numbers[0] for value in inputs if value.numbers is not None and len(value.numbers) == 1]
    return [made if len(numbers) < len(inputs) else made._replace(numbers=(_multiplied(numbers),))]


def identity(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """The same."""
    return [inputs[0]]


def cast(node: Node, inputs: Sequence[Value]) -> list[Value]:
    """The same numbers of another type."""
    data = inputs[0]
    if data.kind == Kind.LINKS:
        return [spoilt(inputs, "Cast of places")]
    return [data._replace(scales=None)]
