"""How channels pass through layers and functions: one rule each, for modules that did not name their groups.

A rule gives the tags of what a node makes, or None when it does not understand this case.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from fedwright.server_runtime.blocks.slicing import TensorAxes
from fedwright.server_runtime.zoo.axis_groups import FIXED, AxisGroups, AxisPart, Tag, Tags, flattened, joined

# One tensor's tags, or a list of what a layer with several outputs makes.
Made = Any
Rule = Callable[["Walk", fx.Node], Made]


class Walk:
    """One pass over a traced module: tags of every value and of every parameter met so far."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.groups = AxisGroups()
        self.tags: dict[fx.Node, Made] = {}
        self._parameters: dict[str, Tags] = {}

    def outputs(self, parameter: str, layer: str, length: int, *, outer: int = 1) -> Tag:
        """The first axis of a parameter: as it was met before, else a new group named like its layer."""
        known = self._parameters.get(parameter)
        return known[0] if known is not None else self.groups.new(layer, length, outer=outer)

    def declare(self, parameter: str, tags: Tags) -> Tags:
        """Say what the axes of a parameter are; if it was met before, both views must agree."""
        known = self._parameters.setdefault(parameter, tags)
        return tuple(self.groups.unify(one, other) for one, other in zip(known, tags, strict=True))

    def tensor_axes(self, name: str, axes: int) -> TensorAxes:
        """The groups of a parameter's axes after the walk; one that no rule met is fixed."""
        return tuple(self.groups.axis(tag) for tag in self._parameters.get(name, (FIXED,) * axes))

    def shape(self, node: Any) -> tuple[int, ...]:
        """The shape of a tensor that a node makes."""
        shape: tuple[int, ...] = node.meta["shape"]
        return shape

    def source(self, node: fx.Node) -> Made:
        """The tags of what a node reads first."""
        first: Any = node.args[0]
        return self.tags[first]

    def layer(self, node: fx.Node) -> tuple[str, Any]:
        """Name and module of a layer's node."""
        return str(node.target), self.module.get_submodule(str(node.target))

    def give_up(self, node: fx.Node) -> None:
        """Keep whole what a node reads, what its layer holds and what it makes."""
        for argument in node.all_input_nodes:
            self._fix(self.tags.get(argument, ()))
        if node.op == "call_module":
            name, layer = self.layer(node)
            for key, value in layer.state_dict().items():
                self.declare(f"{name}.{key}", (FIXED,) * value.ndim)
        self.tags[node] = tuple(FIXED for _ in node.meta.get("shape", ()))

    def _fix(self, made: Made) -> None:
        if isinstance(made, list):
            for one in made:
                self._fix(one)
        else:
            self.groups.fix(made)


def _conv(walk: Walk, node: fx.Node) -> Made:
    name, layer = walk.layer(node)
    source = walk.source(node)
    kernel = (FIXED,) * len(layer.kernel_size)
    if layer.groups == 1:
        out = walk.outputs(f"{name}.weight", name, layer.out_channels)
        walk.declare(f"{name}.weight", (out, source[1], *kernel))
    elif layer.groups == layer.in_channels == layer.out_channels:
        out = source[1]
        walk.declare(f"{name}.weight", (out, FIXED, *kernel))
    else:
        return None
    if layer.bias is not None:
        walk.declare(f"{name}.bias", (out,))
    return (source[0], out, *kernel)


def _linear(walk: Walk, node: fx.Node) -> Made:
    name, layer = walk.layer(node)
    source = walk.source(node)
    out = walk.outputs(f"{name}.weight", name, layer.out_features)
    walk.declare(f"{name}.weight", (out, source[-1]))
    if layer.bias is not None:
        walk.declare(f"{name}.bias", (out,))
    return (*source[:-1], out)


def _norm(walk: Walk, node: fx.Node) -> Made:
    name, layer = walk.layer(node)
    source = walk.source(node)
    last = isinstance(layer, nn.LayerNorm)
    if last and len(layer.normalized_shape) > 1:
        return None
    channels = source[-1 if last else 1]
    for key, value in layer.state_dict().items():
        walk.declare(f"{name}.{key}", (channels,) * value.ndim)
    return source


def _embedding(walk: Walk, node: fx.Node) -> Made:
    name, layer = walk.layer(node)
    known = walk.declare(f"{name}.weight", (FIXED, walk.groups.new(name, layer.embedding_dim)))
    return (*walk.source(node), known[1])


def _recurrent(walk: Walk, node: fx.Node) -> Made:
    """Every gate block of a layer holds the same hidden units; a layer reads the one below."""
    name, layer = walk.layer(node)
    if layer.bidirectional or getattr(layer, "proj_size", 0) or len(node.args) + len(node.kwargs) > 1:
        return None
    below = walk.source(node)
    gates = layer.weight_hh_l0.shape[0] // layer.hidden_size
    source = below[-1]
    hidden = FIXED
    for number in range(layer.num_layers):
        rows = walk.outputs(f"{name}.weight_hh_l{number}", f"{name}.{number}", gates * layer.hidden_size, outer=gates)
        hidden = tuple(AxisPart(part.unknown, layer.hidden_size) for part in rows)
        walk.declare(f"{name}.weight_ih_l{number}", (rows, source))
        walk.declare(f"{name}.weight_hh_l{number}", (rows, hidden))
        if layer.bias:
            walk.declare(f"{name}.bias_ih_l{number}", (rows,))
            walk.declare(f"{name}.bias_hh_l{number}", (rows,))
        source = hidden
    last: Tags = (*(FIXED for _ in below[1:]), hidden)
    # Final states of several layers lie on one axis; whoever reads them needs the last layer whole.
    final: Tags = last if layer.num_layers == 1 else (FIXED,) * len(last)
    if layer.num_layers > 1 and not _only_first(node):
        return None
    return [last, [final, final] if isinstance(layer, nn.LSTM) else final]


def _only_first(node: fx.Node) -> bool:
    """Do all users of a layer with several outputs take the first one?"""
    return all(user.target is operator.getitem and user.args[1] == 0 for user in node.users if user.users)


def _keep(walk: Walk, node: fx.Node) -> Made:
    return walk.source(node)


def _flatten_layer(walk: Walk, node: fx.Node) -> Made:
    _, layer = walk.layer(node)
    return _flat(walk, node, layer.start_dim, layer.end_dim)


def _flatten_call(walk: Walk, node: fx.Node) -> Made:
    return _flat(walk, node, argument(node, 1, "start_dim", 0), argument(node, 2, "end_dim", -1))


def _flat(walk: Walk, node: fx.Node, start: int, end: int) -> Made:
    source = walk.source(node)
    shape = walk.shape(node.args[0])
    first, last = start % len(source), end % len(source)
    inside = flattened(walk.groups, source[first : last + 1], shape[first : last + 1])
    return (*source[:first], inside, *source[last + 1 :])


def view(walk: Walk, node: fx.Node) -> Made:
    """Only `view(n, -1)`: any other target names sizes that would not fit a cut model."""
    target = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
    source = walk.source(node)
    before, after = walk.shape(node.args[0]), walk.shape(node)
    if len(after) != 2 or target[1] != -1 or before[0] != after[0] or source[0]:
        return None
    return (source[0], flattened(walk.groups, source[1:], before[1:]))


def _binary(walk: Walk, node: fx.Node) -> Made:
    """Elementwise with broadcasting: axes that lie on one another hold the same channels."""
    both = [argument for argument in node.args if isinstance(argument, fx.Node) and walk.tags.get(argument)]
    made: list[Tag] = [FIXED] * len(walk.shape(node))
    for argument in both:
        shape, tags = walk.shape(argument), walk.tags[argument]
        for offset, (length, tag) in enumerate(zip(reversed(shape), reversed(tags), strict=True), start=1):
            if length == walk.shape(node)[-offset]:
                # The first operand that really has this axis says what it is; a later one must agree.
                seen = any(len(walk.shape(o)) >= offset and walk.shape(o)[-offset] == length
                           for o in both[: both.index(argument)])  # fmt: skip
                made[-offset] = walk.groups.unify(made[-offset], tag) if seen else tag
    return tuple(made)


def _cat(walk: Walk, node: fx.Node) -> Made:
    pieces: Any = node.args[0]
    if not isinstance(pieces, list | tuple):
        return None
    tags = [walk.tags[piece] for piece in pieces]
    along = argument(node, 1, "dim", 0) % len(tags[0])
    made = list(tags[0])
    for other in tags[1:]:
        made = [one if at == along else walk.groups.unify(one, other[at]) for at, one in enumerate(made)]
    made[along] = joined([one[along] for one in tags], [walk.shape(piece)[along] for piece in pieces])
    return tuple(made)


def _mean(walk: Walk, node: fx.Node) -> Made:
    source = walk.source(node)
    named = argument(node, 1, "dim", None)
    if named is None:
        return None
    gone = {at % len(source) for at in ([named] if isinstance(named, int) else named)}
    if any(source[at] for at in gone):
        return None
    keep = argument(node, 2, "keepdim", False)
    return tuple(tag for at, tag in enumerate(source) if keep or at not in gone)


def _getitem(walk: Walk, node: fx.Node) -> Made:
    whole: Any
    whole, index = node.args
    source = walk.tags.get(whole, ())
    if isinstance(source, list):
        return source[index] if isinstance(index, int) else None
    if not source:
        return ()
    parts = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(part, int | slice) for part in parts):
        return None
    made: list[Tag] = []
    for part, tag in zip(parts, source, strict=False):
        if part != slice(None) and tag:
            return None
        made += [] if isinstance(part, int) else [tag]
    return (*made, *source[len(parts) :])


def _transpose(walk: Walk, node: fx.Node) -> Made:
    made = list(walk.source(node))
    one, other = argument(node, 1, "dim0", 0), argument(node, 2, "dim1", 1)
    made[one], made[other] = made[other], made[one]
    return tuple(made)


def _permute(walk: Walk, node: fx.Node) -> Made:
    order = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
    source = walk.source(node)
    return tuple(source[at] for at in order)


def _size(walk: Walk, node: fx.Node) -> Made:
    """Reading a shape takes nothing from the tensor."""
    return () if node.target is not getattr or node.args[1] in ("shape", "dtype", "device") else None


def argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    """An argument of a call, given by place or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


_CHANNELWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh,
    nn.Softplus, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d,
    nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.ZeroPad2d, nn.Upsample,
)  # fmt: skip
MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys(_CHANNELWISE, _keep),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), _conv),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm), _norm),
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), _recurrent),
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.Flatten: _flatten_layer,
}
_SAME = (
    torch.relu, torch.sigmoid, torch.tanh, torch.abs, torch.exp, torch.sqrt, torch.clamp, functional.relu,
    functional.relu6, functional.leaky_relu, functional.elu, functional.silu, functional.gelu, functional.hardswish,
    functional.hardsigmoid, functional.sigmoid, functional.tanh, functional.softplus, functional.dropout,
    functional.dropout2d, functional.max_pool1d, functional.max_pool2d, functional.avg_pool1d, functional.avg_pool2d,
    functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.interpolate,
    "relu", "sigmoid", "tanh", "abs", "exp", "sqrt", "clamp", "contiguous", "float", "clone",
)  # fmt: skip
_PAIRS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.imul, torch.add, torch.sub,
    torch.mul, torch.div, "add", "sub", "mul", "div", "add_", "mul_",
)  # fmt: skip
FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys(_SAME, _keep),
    **dict.fromkeys(_PAIRS, _binary),
    **dict.fromkeys((torch.flatten, "flatten"), _flatten_call),
    **dict.fromkeys(("view", "reshape", torch.reshape), view),
    **dict.fromkeys((torch.cat, torch.concat), _cat),
    **dict.fromkeys((torch.mean, "mean", torch.sum, "sum"), _mean),
    **dict.fromkeys((torch.transpose, "transpose"), _transpose),
    **dict.fromkeys((torch.permute, "permute"), _permute),
    **dict.fromkeys(("size", "dim", getattr), _size),
    operator.getitem: _getitem,
}
