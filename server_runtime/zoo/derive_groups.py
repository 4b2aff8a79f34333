"""Channel groups of a user's own module, found by following its channels through one traced run.

A layer or function without a rule here keeps the axes that reach it whole, so a group that is found is safe to cut.
"""

import copy
from collections.abc import Mapping
from math import gcd
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.slicing import Axis, AxisLike, TensorAxes, group_sizes, prefix_plan, take
from fedwright.server_runtime.zoo.attention_rules import FUNCTIONS, MODULES
from fedwright.server_runtime.zoo.axis_groups import FIXED
from fedwright.server_runtime.zoo.channel_rules import Walk

HOW_TO_DECLARE = "say in a method channel_groups() of the module which axes are cut together (docs/own-model.md)"


def example_input(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Two zero examples: word ids when the first layer looks them up, else numbers."""
    leaves = [layer for layer in module.modules() if not list(layer.children())]
    tokens = bool(leaves) and isinstance(leaves[0], nn.Embedding | nn.EmbeddingBag)
    return torch.zeros(2, *shape, dtype=torch.int64 if tokens else torch.float32)


class _Shapes(fx.Interpreter):
    """Runs a traced module and notes the shape of every tensor it makes."""

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        if isinstance(made, Tensor):
            n.meta["shape"] = tuple(made.shape)
        return made


def derived_axes(module: nn.Module, shape: tuple[int, ...]) -> dict[str, TensorAxes]:
    """For each parameter and buffer, the channel group of every axis (None = fixed)."""
    # A copy, because a run in training mode would move running statistics.
    still = copy.deepcopy(module).eval()
    try:
        traced = fx.symbolic_trace(still)
        with torch.no_grad():
            _Shapes(traced).run(example_input(still, shape))
    except (fx.proxy.TraceError, RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as err:
        reason = str(err).strip().partition("\n")[0]
        raise ConfigError(
            f"the channel groups of {type(module).__name__} cannot be derived: {reason}; {HOW_TO_DECLARE}"
        ) from err
    walk = Walk(module)
    for node in traced.graph.nodes:
        _visit(walk, node)
    return {name: walk.tensor_axes(name, value.ndim) for name, value in module.state_dict().items()}


def declared_axes(module: nn.Module) -> dict[str, TensorAxes] | None:
    """What a module's own `channel_groups()` says, checked; tensors that it does not name are fixed. None without one.

    It gives a tuple with an entry per axis for each name in `state_dict()`: None, a group, or (group, outer, inner).
    """
    say = getattr(module, "channel_groups", None)
    if not callable(say):
        return None
    said, state = say(), module.state_dict()
    where = f"channel_groups() of {type(module).__name__}"
    if not isinstance(said, Mapping):
        raise ConfigError(f"{where} gives a {type(said).__name__}; it must give a dict of tensor name to axes")
    for name, axes in said.items():
        if name not in state:
            raise ConfigError(f"{where} names {name!r}, which is no tensor of it; see state_dict() for the names")
        if not isinstance(axes, tuple | list) or len(axes) != state[name].ndim:
            raise ConfigError(f"{where} must give {state[name].ndim} axes for {name}, not {axes!r}")
    found = {name: tuple(_declared_axis(one, where) for one in said.get(name, ())) for name in state}
    return {name: axes or (None,) * state[name].ndim for name, axes in found.items()}


def _declared_axis(said: object, where: str) -> AxisLike:
    if said is None or isinstance(said, Axis):
        return said
    if isinstance(said, str):
        return Axis(said)
    match said:
        case (str(group), int(outer), int(inner)) if outer > 0 and inner > 0:
            return Axis(group, outer, inner)
    raise ConfigError(f"{where} has {said!r} for an axis; give None, 'group' or ('group', outer, inner)")


def shrink(module: nn.Module, axes: Mapping[str, TensorAxes], sizes: Mapping[str, int], shape: tuple[int, ...]) -> None:
    """Cut a module in place to the first channels of each group, and check that it still runs."""
    state = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    part = take(state, axes, prefix_plan(group_sizes(state, axes), sizes))
    for prefix, layer in module.named_modules():
        start = f"{prefix}." if prefix else ""
        for name, parameter in list(layer.named_parameters(recurse=False)):
            new = torch.from_numpy(part[start + name])
            layer.register_parameter(name, nn.Parameter(new, requires_grad=parameter.requires_grad))
        for name, _ in list(layer.named_buffers(recurse=False)):
            if start + name in part:
                layer.register_buffer(name, torch.from_numpy(part[start + name]))
        _adjust(layer)
    training = module.training
    try:
        with torch.no_grad():
            module.eval()(example_input(module, shape))
    except (RuntimeError, ValueError, TypeError) as err:
        raise ConfigError(
            f"{type(module).__name__} cannot be cut to {dict(sizes)}: {err}; "
            f"does its forward name channel counts that it could read off its input or weights?"
        ) from err
    module.train(training)


def _adjust(layer: nn.Module) -> None:
    """Make a layer's own numbers fit its parameters."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        layer.out_channels = layer.weight.shape[0]
        layer.groups = layer.out_channels if layer.groups > 1 else 1
        layer.in_channels = layer.weight.shape[1] * layer.groups
    elif isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.affine:
        layer.num_features = layer.weight.shape[0]
    elif isinstance(layer, nn.GroupNorm) and layer.affine:
        layer.num_channels = layer.weight.shape[0]
        layer.num_groups = gcd(layer.num_groups, layer.num_channels)
    elif isinstance(layer, nn.LayerNorm) and layer.elementwise_affine:
        layer.normalized_shape = tuple(layer.weight.shape)
    elif isinstance(layer, nn.Embedding):
        layer.embedding_dim = layer.weight.shape[1]
    elif isinstance(layer, nn.MultiheadAttention) and layer._qkv_same_embed_dim:
        layer.embed_dim = layer.kdim = layer.vdim = layer.in_proj_weight.shape[1]
        layer.num_heads = layer.embed_dim // layer.head_dim
    elif isinstance(layer, nn.RNNBase):
        shapes = {name: tuple(value.shape) for name, value in layer.named_parameters()}
        layer.hidden_size, layer.input_size = shapes["weight_hh_l0"][1], shapes["weight_ih_l0"][1]
        layer._init_flat_weights()


def _visit(walk: Walk, node: fx.Node) -> None:
    """Tag what a node makes; a node without a rule fixes what it reads."""
    if node.op == "placeholder":
        walk.tags[node] = tuple(FIXED for _ in walk.shape(node))
        return
    if node.op == "get_attr":
        name = str(node.target)
        fresh = tuple(walk.groups.new(name, length) if length > 1 else FIXED for length in walk.shape(node))
        walk.tags[node] = walk.declare(name, fresh)
        return
    rule = MODULES.get(type(walk.layer(node)[1])) if node.op == "call_module" else FUNCTIONS.get(node.target)
    made = rule(walk, node) if rule is not None else None
    if made is None:
        walk.give_up(node)
    else:
        walk.tags[node] = made
