"""Torch functions that the exporter cannot write, in terms of those it can; in force while a module is traced.

Sizes are those of the traced example and become constants; the number of samples alone stays free (-1).
"""

import string
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Form = Callable[..., Any]
FORMS: dict[Any, Form] = {}


def plain(*functions: Any) -> Callable[[Form], Form]:
    """Register another form of these functions; it may return NotImplemented."""

    def register(form: Form) -> Form:
        FORMS.update(dict.fromkeys(functions, form))
        return form

    return register


class PlainForms(TorchFunctionMode):
    """Calls the other form where there is one; marks what is computed under torch.no_grad, which leaves no trace."""

    def __init__(self) -> None:
        super().__init__()
        # What torch itself says also holds inside a user's autograd.Function, whose result has a gradient.
        self._cuts = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._C._set_grad_enabled:
            self._cuts = not args[0]
        form, made = FORMS.get(func), NotImplemented
        if form is not None:
            with self:
                made = form(*args, **(kwargs or {}))
        if made is NotImplemented:
            made = func(*args, **(kwargs or {}))
        cut = self._cuts and isinstance(made, torch.Tensor) and made.is_floating_point()
        return made.detach() if cut else made


def _sizes(x: torch.Tensor) -> list[int]:
    """The sizes of the example, all but the first as constants."""
    return [-1, *(int(size) for size in x.shape[1:])]


@plain(functional.fold)
def _fold(
    x: torch.Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """Each column of values put at its place in the kernel, by a transposed convolution with ones and zeros."""
    size, kernel, dilation, padding, stride = (
        (v, v) if isinstance(v, int) else tuple(v) for v in (output_size, kernel_size, dilation, padding, stride)
    )
    if x.dim() != 3:
        return NotImplemented
    places, rows = kernel[0] * kernel[1], int(x.shape[1])
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    steps = [(n + 2 * p - r) // s + 1 for n, p, r, s in zip(size, padding, reach, stride, strict=True)]
    over = [(m - 1) * s + r - 2 * p - n for m, s, r, p, n in zip(steps, stride, reach, padding, size, strict=True)]
    ones = torch.eye(places, dtype=x.dtype).reshape(places, 1, *kernel).repeat(rows // places, 1, 1, 1)
    image = x.reshape(-1, rows, *steps)
    extra = [-n for n in over]
    return functional.conv_transpose2d(image, ones, None, stride, padding, extra, rows // places, dilation)


@plain(functional.affine_grid)
def _affine_grid(theta: torch.Tensor, size: Any, align_corners: bool | None = None) -> Any:
    """Points of a regular grid times each sample's matrix."""
    axes = [_centres(int(count), aligned=bool(align_corners)) for count in list(size)[2:]]
    grids = torch.meshgrid(*axes, indexing="ij")
    points = torch.stack([*grids[::-1], torch.ones_like(grids[0])], dim=-1)
    flat = points.reshape(1, -1, len(axes) + 1).to(theta.dtype)
    return (flat @ theta.transpose(1, 2)).reshape(-1, *points.shape[:-1], len(axes))


def _centres(count: int, *, aligned: bool) -> torch.Tensor:
    """Where the pixels of an axis are between -1 and 1."""
    if aligned:
        return torch.linspace(-1, 1, count)
    return (2 * torch.arange(count) + 1) / count - 1


@plain(functional.grid_sample)
def _grid_sample(
    x: torch.Tensor,
    grid: torch.Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """The values of an image between its pixels: of the four around a point, by how near they are."""
    if x.dim() != 4 or mode == "bicubic":
        return NotImplemented
    height, width = int(x.shape[2]), int(x.shape[3])
    column, row = (
        _in_pixels(grid[..., at], size, padding_mode, aligned=bool(align_corners))
        for at, size in ((0, width), (1, height))
    )
    if mode == "nearest":
        return _pixels(x, row.round(), column.round())
    top, left = row.floor(), column.floor()
    down, right = (row - top.detach()).unsqueeze(1), (column - left.detach()).unsqueeze(1)
    upper = _pixels(x, top, left) * (1 - right) + _pixels(x, top, left + 1) * right
    lower = _pixels(x, top + 1, left) * (1 - right) + _pixels(x, top + 1, left + 1) * right
    return upper * (1 - down) + lower * down


def _in_pixels(place: torch.Tensor, size: int, padding_mode: str, *, aligned: bool) -> torch.Tensor:
    """A place between -1 and 1 as a number of pixels, moved into the image if asked for."""
    found = (place + 1) * ((size - 1) / 2) if aligned else (place + 1) * (size / 2) - 0.5
    if padding_mode == "reflection":
        low, span = (0.0, size - 1.0) if aligned else (-0.5, float(size))
        away = (found - low).abs()
        turns = (away / span).floor().detach()
        rest = away - turns * span
        odd = (turns - 2 * (turns / 2).floor()).detach()
        found = rest * (1 - odd) + (span - rest) * odd + low
    return found.clamp(0, size - 1) if padding_mode != "zeros" else found


def _pixels(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """x at whole places [batch, ...], zero outside of the image."""
    _, channels, height, width = _sizes(x)
    inside = ((row >= 0) & (row <= height - 1) & (column >= 0) & (column <= width - 1)).to(x.dtype)
    flat = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    places = flat.long().reshape(-1, 1, int(flat[0].numel())).expand(-1, channels, -1)
    found = x.reshape(-1, channels, height * width).gather(2, places)
    return found.reshape(-1, channels, *flat.shape[1:]) * inside.unsqueeze(1)


@plain(functional.interpolate)
def _interpolate(
    x: torch.Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **rest: Any
) -> Any:
    """Antialiased and exact nearest ones: along each axis a product with what becomes of a unit matrix."""
    antialias = bool(rest.get("antialias"))
    if not antialias and mode not in ("nearest-exact", "area"):
        return NotImplemented
    axes = range(2, x.dim())
    sizes = [int(x.shape[axis]) for axis in axes]
    if size is None:
        factors = scale_factor if isinstance(scale_factor, tuple | list) else [scale_factor] * len(sizes)
        size = [int(n * factor) for n, factor in zip(sizes, factors, strict=True)]
    targets = [size] * len(sizes) if isinstance(size, int) else [int(n) for n in size]
    if mode == "area":
        return _adaptive_average(x, targets)
    settings: dict[str, Any] = {"mode": mode, "antialias": antialias, "align_corners": rest.get("align_corners")}
    for axis, n, target in zip(axes, sizes, targets, strict=True):
        # Images one pixel wide come out wrong with antialiasing (torch 2.13), so two.
        unit = torch.eye(n).reshape(n, 1, n, 1).expand(n, 1, n, 2)
        with torch._C.DisableTorchFunction():
            made = functional.interpolate(unit, size=(target, 2), **settings)[:, 0, :, 0]
            matrix = torch.tensor(made.tolist(), dtype=x.dtype)
        x = (x.movedim(axis, -1) @ matrix).movedim(-1, axis)
    return x


@plain(functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)
def _adaptive_average(x: torch.Tensor, output_size: Any) -> Any:
    """Even windows as pooling, others as a product with the matrix of averages along each axis."""
    axes = range(2, x.dim())
    pairs = _adaptive_pairs(x, output_size)
    if all(parts == 1 for _, parts in pairs):
        return x.mean(list(axes), keepdim=True)
    if all(size % parts == 0 for size, parts in pairs):
        kernel = [size // parts for size, parts in pairs]
        return {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}[len(kernel)](x, kernel)
    for axis, (size, parts) in zip(axes, pairs, strict=True):
        if size != parts:
            columns = [[(a <= row < b) / (b - a) for a, b in _windows(size, parts)] for row in range(size)]
            x = (x.movedim(axis, -1) @ torch.tensor(columns, dtype=x.dtype)).movedim(-1, axis)
    return x


@plain(functional.adaptive_max_pool1d, functional.adaptive_max_pool2d, functional.adaptive_max_pool3d)
def _adaptive_max(x: torch.Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Even windows as pooling, others as the maximum of each window, one axis after the other."""
    if return_indices:
        return NotImplemented
    pairs = _adaptive_pairs(x, output_size)
    if all(size % parts == 0 for size, parts in pairs):
        kernel = [size // parts for size, parts in pairs]
        return {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}[len(kernel)](x, kernel)
    for axis, (size, parts) in enumerate(pairs, start=2):
        windows = [x.narrow(axis, a, b - a).amax(axis, keepdim=True) for a, b in _windows(size, parts)]
        x = torch.cat(windows, axis)
    return x


def _adaptive_pairs(x: torch.Tensor, output_size: Any) -> list[tuple[int, int]]:
    """(positions, parts) of each pooled axis."""
    sizes = [int(size) for size in x.shape[2:]]
    parts = output_size if isinstance(output_size, tuple | list) else [output_size] * len(sizes)
    return [(size, size if part is None else int(part)) for size, part in zip(sizes, parts, strict=True)]


def _windows(size: int, parts: int) -> list[tuple[int, int]]:
    """The windows of adaptive pooling from `size` positions to `parts`; they overlap where `parts` does not divide."""
    return [(at * size // parts, -(-(at + 1) * size // parts)) for at in range(parts)]


@plain(torch.diagonal, torch.Tensor.diagonal)
def _diagonal(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """By places in the flattened matrix."""
    first, second = dim1 % x.dim(), dim2 % x.dim()
    if 0 in (first, second):
        return NotImplemented
    rows, columns = int(x.shape[first]), int(x.shape[second])
    rest = [axis for axis in range(x.dim()) if axis not in (first, second)]
    turned = x.permute(*rest, first, second)
    flat = turned.reshape(*_sizes(turned)[:-2], rows * columns)
    places = [at * columns + at + offset for at in range(rows) if 0 <= at + offset < columns]
    return flat.index_select(-1, torch.tensor(places))


@plain(torch.einsum)
def _einsum(equation: Any, *operands: Any) -> Any:
    """Dots spelt out, and letters that repeat in one operand taken as its diagonal."""
    if not isinstance(equation, str):
        return NotImplemented
    items = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    terms, result = _spelt_out(equation.replace(" ", ""), [item.dim() for item in items])
    for at, term in enumerate(terms):
        while len(set(term)) < len(term):
            letter = next(letter for letter in term if term.count(letter) > 1)
            first, second = [place for place, other in enumerate(term) if other == letter][:2]
            items[at] = torch.diagonal(items[at], dim1=first, dim2=second)
            term = "".join(other for place, other in enumerate(term) if place not in (first, second)) + letter
        terms[at] = term
    with torch._C.DisableTorchFunction():
        return torch.einsum(f"{','.join(terms)}->{result}", *items)


def _spelt_out(text: str, ranks: list[int]) -> tuple[list[str], str]:
    """The terms of an equation and its result, without dots and with an arrow."""
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    counts = [rank - len(term) + 3 if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    dots = "".join(letter for letter in string.ascii_letters if letter not in text)[: max(counts)]
    spelt = [term.replace("...", dots[len(dots) - count :]) for term, count in zip(terms, counts, strict=True)]
    if arrow:
        return spelt, right.replace("...", dots)
    once = sorted(letter for letter in set(left) - set(".,") if left.count(letter) == 1)
    return spelt, dots + "".join(once)


@plain(functional.scaled_dot_product_attention)
def _attention(query: Any, key: Any, value: Any, *rest: Any, enable_gqa: bool = False, **options: Any) -> Any:
    """Heads of keys and values that several heads of queries share are repeated first."""
    if not enable_gqa:
        return NotImplemented
    times = int(query.shape[-3]) // int(key.shape[-3])
    key, value = (x.repeat_interleave(times, dim=-3) for x in (key, value))
    return functional.scaled_dot_product_attention(query, key, value, *rest, **options)


@plain(functional.embedding_bag)
def _embedding_bag(
    indices: Any, weight: Any, offsets: Any = None, *rest: Any, mode: str = "mean", **options: Any
) -> Any:
    """Sum, mean or maximum of the rows that a matrix of indices names."""
    given = [value for value in (*rest, *options.values()) if value is not None and value is not False]
    if indices.dim() != 2 or given not in ([], [2.0]):
        return NotImplemented
    rows = functional.embedding(indices, weight)
    return {"sum": rows.sum(1), "mean": rows.mean(1)}[mode] if mode != "max" else rows.amax(1)


@plain(torch.tensor_split, torch.Tensor.tensor_split)
def _tensor_split(x: torch.Tensor, parts: Any, dim: int = 0) -> Any:
    """Nearly equal parts, or parts between places."""
    if dim % x.dim() == 0 or isinstance(parts, torch.Tensor):
        return NotImplemented
    size = int(x.shape[dim])
    whole, more = divmod(size, parts) if isinstance(parts, int) else (0, 0)
    stops = [at * whole + min(at, more) for at in range(1, parts)] if isinstance(parts, int) else list(parts)
    return x.split([b - a for a, b in zip([0, *stops], [*stops, size], strict=True)], dim)


@plain(torch.tile, torch.Tensor.tile)
def _tile(x: torch.Tensor, *repeats: Any) -> Any:
    """As repeat, whose number of axes counts."""
    times = list(repeats[0]) if len(repeats) == 1 and isinstance(repeats[0], tuple | list) else list(repeats)
    return x.repeat(*[1] * (x.dim() - len(times)), *times)


@plain(functional.local_response_norm)
def _local_response_norm(x: torch.Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    """Divided by a power of the mean square of the channels around."""
    rest = [0, 0] * (x.dim() - 2)
    squares = functional.pad(x * x, [*rest, size // 2, (size - 1) // 2])
    channels = int(x.shape[1])
    total = torch.stack([squares.narrow(1, at, channels) for at in range(size)]).sum(0)
    return x / (total * (alpha / size) + k).pow(beta)


@plain(torch.channel_shuffle, torch.native_channel_shuffle)
def _channel_shuffle(x: torch.Tensor, groups: int) -> Any:
    """Channels of the groups taken in turn."""
    sizes = _sizes(x)
    return x.reshape(-1, groups, sizes[1] // groups, *sizes[2:]).transpose(1, 2).reshape(sizes)


@plain(torch.Tensor.__getitem__)
def _item(x: torch.Tensor, key: Any) -> Any:
    """x[arange(batch), place]: from each sample the entry at its own place, or at places that are the same for all."""
    if not isinstance(key, tuple) or len(key) != 2 or x.dim() < 2 or not _counts_samples(key[0], x):
        return NotImplemented
    places, sizes = key[1], _sizes(x)
    if isinstance(places, int):
        return x.select(1, places)
    if not isinstance(places, torch.Tensor) or places.dim() != key[0].dim() or places.dtype != torch.int64:
        return NotImplemented
    if places.dim() > 1:
        if places.shape[0] != 1:
            return NotImplemented
        return x.index_select(1, places.reshape(-1)).reshape(-1, *(int(n) for n in places.shape[1:]), *sizes[2:])
    inside = torch.where(places < 0, places + sizes[1], places)
    column = inside.reshape(-1, *[1] * (x.dim() - 1)).expand(-1, 1, *sizes[2:])
    return x.gather(1, column).select(1, 0)


def _counts_samples(value: Any, x: torch.Tensor) -> bool:
    """Is this 0, 1, 2, ... as far as there are samples?"""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.int64 or value.dim() < 1:
        return False
    if value.shape != (x.shape[0], *[1] * (value.dim() - 1)):
        return False
    with torch._C.DisableTorchFunction():
        return bool(value.flatten().tolist() == list(range(int(x.shape[0]))))


@plain(torch.Tensor.__setitem__)
def _set_item(x: torch.Tensor, key: Any, new: Any) -> Any:
    """x[:, a:b, ..., c] = new: as a choice between the new part, with zeros around it, and what was there."""
    keys = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, slice | int) for part in keys) or keys[0] != slice(None):
        return NotImplemented
    spans = [_span(part, int(size)) for part, size in zip(keys[1:], x.shape[1:], strict=False)]
    if not spans or any(span is None for span in spans) or not isinstance(new, torch.Tensor | int | float):
        return NotImplemented
    known = [span for span in spans if span is not None]
    mask, margins = torch.ones([1] * x.dim(), dtype=torch.bool), list[int]()
    for axis, (start, stop) in enumerate(known, start=1):
        size = int(x.shape[axis])
        places = torch.arange(size).reshape([-1 if at == axis else 1 for at in range(x.dim())])
        mask = mask & (places >= start) & (places < stop)
        margins = [start, size - stop, *margins]
    if isinstance(new, torch.Tensor) and new.dim():
        for axis in [at for at, part in enumerate(keys) if isinstance(part, int)]:
            new = new.unsqueeze(axis - len(keys) if new.dim() < axis else axis)
        shape = [-1, *(stop - start for start, stop in known), *(int(size) for size in x.shape[1 + len(known) :])]
        margins = [0, 0] * (x.dim() - 1 - len(known)) + margins
        new = functional.pad(new.expand(shape), margins)
    constant_mask = torch.tensor(mask.tolist())
    x.copy_(torch.where(constant_mask, new, x))
    return None


def _span(key: Any, size: int) -> tuple[int, int] | None:
    """From where to where a key takes entries; None with steps."""
    if isinstance(key, int):
        return key % size, key % size + 1
    start, stop, step = key.indices(size)
    return (start, max(start, stop)) if step == 1 else None
