"""How channels pass through attention: its heads are the channels where a layer of torch holds them all.

`nn.MultiheadAttention` needs as many channels inside as outside, so a model around it loses whole heads of its trunk.
Attention that is written out is followed through `view`, products and softmax; what of it can be cut depends on which
size its `view` leaves open (-1): the number of heads or the width of each.
"""

import operator
from math import prod
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from fedwright.server_runtime.zoo import channel_rules
from fedwright.server_runtime.zoo.axis_groups import FIXED, AxisPart, Tag, flattened
from fedwright.server_runtime.zoo.channel_rules import Made, Rule, Walk, argument


def _trunk(walk: Walk, name: str, layer: nn.MultiheadAttention, sources: list[Tag]) -> Tag | None:
    """The axis that queries, keys, values and the output share, in heads; None for a layer of another form."""
    plain = layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn
    if not plain:
        return None
    if not all(len(source) == 1 for source in sources):
        walk.groups.fix(sources)
        sources = [FIXED]
    heads = walk.groups.split(sources[0], name, inner=layer.head_dim)
    trunk = tuple(AxisPart(part.unknown, layer.embed_dim, inner=layer.head_dim) for part in heads)
    rows = tuple(AxisPart(part.unknown, 3 * layer.embed_dim, 3, layer.head_dim) for part in heads)
    for source in sources:
        walk.groups.unify(source, trunk)
    walk.declare(f"{name}.in_proj_weight", (rows, trunk))
    walk.declare(f"{name}.out_proj.weight", (trunk, trunk))
    if layer.in_proj_bias is not None:
        walk.declare(f"{name}.in_proj_bias", (rows,))
        walk.declare(f"{name}.out_proj.bias", (trunk,))
    return trunk


def _multihead(walk: Walk, node: fx.Node) -> Made:
    name, layer = walk.layer(node)
    given = [argument(node, at, key, None) for at, key in enumerate(("query", "key", "value"))]
    if not all(isinstance(one, fx.Node) for one in given):
        return None
    tags = [walk.tags[one] for one in given]
    trunk = _trunk(walk, name, layer, [one[-1] for one in tags])
    return None if trunk is None else [(*tags[0][:-1], trunk), (FIXED,) * 3]


def _encoder_layer(walk: Walk, node: fx.Node) -> Made:
    name, layer = walk.layer(node)
    source = walk.source(node)
    trunk = _through_layer(walk, name, layer, source[-1])
    return None if trunk is None else (*source[:-1], trunk)


def _encoder(walk: Walk, node: fx.Node) -> Made:
    name, layer = walk.layer(node)
    source = walk.source(node)
    trunk: Tag | None = source[-1]
    for number, each in enumerate(layer.layers):
        if trunk is not None:
            trunk = _through_layer(walk, f"{name}.layers.{number}", each, trunk)
    if trunk is None or not isinstance(layer.norm, nn.LayerNorm | None):
        return None
    if layer.norm is not None:
        _declare_all(walk, f"{name}.norm", layer.norm, trunk)
    return (*source[:-1], trunk)


def _through_layer(walk: Walk, name: str, layer: nn.Module, source: Tag) -> Tag | None:
    """The trunk behind one encoder layer; its feed-forward width is a group of its own."""
    if type(layer) is not nn.TransformerEncoderLayer:
        return None
    trunk = _trunk(walk, f"{name}.self_attn", layer.self_attn, [source])
    if trunk is None:
        return None
    inside = walk.outputs(f"{name}.linear1.weight", f"{name}.linear1", layer.linear1.out_features)
    walk.declare(f"{name}.linear1.weight", (inside, trunk))
    walk.declare(f"{name}.linear2.weight", (trunk, inside))
    if layer.linear1.bias is not None:
        walk.declare(f"{name}.linear1.bias", (inside,))
        walk.declare(f"{name}.linear2.bias", (trunk,))
    for norm in ("norm1", "norm2"):
        _declare_all(walk, f"{name}.{norm}", getattr(layer, norm), trunk)
    return trunk


def _declare_all(walk: Walk, name: str, layer: nn.Module, tag: Tag) -> None:
    for key in layer.state_dict():
        walk.declare(f"{name}.{key}", (tag,))


def _scaled_dot_product(walk: Walk, node: fx.Node) -> Made:
    given = [argument(node, at, key, None) for at, key in enumerate(("query", "key", "value"))]
    if not all(isinstance(one, fx.Node) for one in given):
        return None
    query, key, value = (walk.tags[one] for one in given)
    walk.groups.unify(query[-1], key[-1])
    for at in range(len(query) - 2):
        walk.groups.unify(walk.groups.unify(query[at], key[at]), value[at])
    return (*query[:-1], value[-1])


def _product(walk: Walk, node: fx.Node) -> Made:
    """a @ b for stacks of matrices of equal number."""
    both: list[Any] = [walk.tags.get(each, ()) if isinstance(each, fx.Node) else () for each in node.args[:2]]
    one, other = both
    if len(one) != len(other) or len(one) < 2:
        return None
    walk.groups.unify(one[-1], other[-2])
    for at in range(len(one) - 2):
        walk.groups.unify(one[at], other[at])
    return (*one[:-1], other[-1])


def _softmax(walk: Walk, node: fx.Node) -> Made:
    source, along = walk.source(node), argument(node, 1, "dim", None)
    return source if isinstance(along, int) and not source[along] else None


def _view(walk: Walk, node: fx.Node) -> Made:
    """Heads taken apart or put together again where one of the sizes is left open; else as for flattened maps."""
    target: Any = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
    source, before, after = walk.source(node), walk.shape(node.args[0]), walk.shape(node)
    kept = len(before) - 1
    if len(after) > len(before) and before[:kept] == after[:kept]:
        return _split_last(walk, node, source, target[kept:])
    if len(after) == len(before) - 1 and len(after) > 2 and before[:-2] == after[:-1] and target[-1] == -1:
        return (*source[:-2], flattened(walk.groups, source[-2:], before[-2:]))
    return channel_rules.view(walk, node)


def _unflatten(walk: Walk, node: fx.Node) -> Made:
    source, sizes = walk.source(node), argument(node, 2, "sizes", ())
    at = argument(node, 1, "dim", 0)
    return _split_last(walk, node, source, sizes) if at in (-1, len(source) - 1) else None


def _split_last(walk: Walk, node: fx.Node, source: Any, sizes: Any) -> Made:
    """The last axis as several, of which the one that is left open has the channels."""
    opened = [at for at, size in enumerate(sizes) if size == -1]
    if len(opened) != 1 or not all(isinstance(size, int) for size in sizes):
        return None
    before, behind = prod(sizes[: opened[0]]), prod(sizes[opened[0] + 1 :])
    made: list[Tag] = [FIXED] * len(sizes)
    made[opened[0]] = walk.groups.split(source[-1], node.name, outer=before, inner=behind)
    return (*source[:-1], *made)


def _chunk(walk: Walk, node: fx.Node) -> Made:
    """Pieces of equal length, such as packed queries, keys and values, hold the same channels each."""
    source, pieces = walk.source(node), argument(node, 1, "chunks", None)
    if not isinstance(pieces, int):
        return None
    at = argument(node, 2, "dim", 0) % len(source)
    if walk.shape(node.args[0])[at] % pieces:
        return None
    piece = walk.groups.split(source[at], node.name, outer=pieces)
    return [(*source[:at], piece, *source[at + 1 :])] * pieces


def _unbind(walk: Walk, node: fx.Node) -> Made:
    source = walk.source(node)
    at = argument(node, 1, "dim", 0) % len(source)
    return None if source[at] else [(*source[:at], *source[at + 1 :])] * walk.shape(node.args[0])[at]


def _expand(walk: Walk, node: fx.Node) -> Made:
    """Axes of length 1 that are repeated; an axis with channels must be left open."""
    target: Any = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
    source = walk.source(node)
    if len(target) != len(source) or any(tag and size != -1 for tag, size in zip(source, target, strict=True)):
        return None
    return source


MODULES: dict[type[nn.Module], Rule] = channel_rules.MODULES | {
    nn.MultiheadAttention: _multihead,
    nn.TransformerEncoderLayer: _encoder_layer,
    nn.TransformerEncoder: _encoder,
}
FUNCTIONS: dict[Any, Rule] = channel_rules.FUNCTIONS | {
    functional.scaled_dot_product_attention: _scaled_dot_product,
    **dict.fromkeys((operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"), _product),
    **dict.fromkeys((torch.softmax, functional.softmax, "softmax"), _softmax),
    **dict.fromkeys(("view", "reshape", torch.reshape), _view),
    **dict.fromkeys(("unflatten", torch.unflatten), _unflatten),
    **dict.fromkeys(("chunk", torch.chunk), _chunk),
    **dict.fromkeys(("unbind", torch.unbind), _unbind),
    "expand": _expand,
}
