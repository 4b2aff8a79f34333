"""A module run as torch runs it, to tell what a trace would hide: which layer fails, and what depends on the data."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedwright.protocol.errors import BuildError

# Ways in which Python learns a number of a tensor, which a trace takes for constant.
READS = {
    getattr(torch.Tensor, name)
    for name in ("__bool__", "__int__", "__float__", "__index__", "__contains__", "item", "tolist")
}
_OTHER_INPUTS = 3
_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Read:
    """What Python asked of a tensor: by which function, in which layer, and what it got."""

    function: Any
    layer: str
    made: Any


class _Reads(TorchFunctionMode):
    """Notes what Python reads of tensors, and in which layer."""

    def __init__(self, layers: "_Layers") -> None:
        super().__init__()
        self.seen: list[Read] = []
        self._layers = layers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in READS:
            self.seen.append(Read(func, self._layers.now, made))
        return made


class _Calls(TorchFunctionMode):
    """Finds the layer that calls a function of torch."""

    def __init__(self, layers: "_Layers", names: set[str]) -> None:
        super().__init__()
        self.found: str | None = None
        self._layers, self._names = layers, names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.found is None and getattr(func, "__name__", "") in self._names:
            self.found = self._layers.now
        return func(*args, **(kwargs or {}))


class _Layers:
    """The layer that runs: its path in the module, and its kind."""

    def __init__(self, module: nn.Module) -> None:
        self._paths = {id(layer): path for path, layer in module.named_modules()}
        self._stack: list[str] = []

    @property
    def now(self) -> str:
        """Its name for people."""
        return self._stack[-1] if self._stack else "the model itself"

    def name(self, layer: nn.Module) -> str:
        """Path and kind of a layer."""
        path = self._paths.get(id(layer), "")
        return f"{path} ({type(layer).__name__})" if path else type(layer).__name__

    def enter(self, layer: nn.Module, args: Any) -> None:
        """Before a layer runs."""
        self._stack.append(self.name(layer))

    def leave(self, layer: nn.Module, args: Any, made: Any) -> None:
        """After it ran."""
        self._stack.pop()


@contextmanager
def _followed(layers: _Layers) -> Iterator[None]:
    hooks = [
        nn.modules.module.register_module_forward_pre_hook(layers.enter),
        nn.modules.module.register_module_forward_hook(layers.leave),
    ]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def check_runs(module: nn.Module, examples: Sequence[torch.Tensor]) -> list[Read]:
    """What the module asks of tensors, whatever the data.

    Raises BuildError where it does not run with these inputs, or takes other ways with other ones.
    """
    module = copy.deepcopy(module)
    first = _reads(module, examples)
    if not first:
        return []
    rng = np.random.default_rng(0)
    for _ in range(_OTHER_INPUTS):
        others = [_other(value, rng) for value in examples]
        for before, now in zip(first, _reads(module, others), strict=False):
            if str(before.made) != str(now.made):
                raise BuildError(
                    f"layer {before.layer} asks for a value of a tensor that depends on the data ({before.made} with "
                    f"one batch, {now.made} with another), which one graph for all batches cannot follow; choose with "
                    "torch.where, or keep the number in Python"
                )
    return first


def _other(value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Another input of the same shape; whole numbers stay as small as they are likely to be allowed."""
    if not value.is_floating_point():
        return torch.from_numpy(rng.integers(0, 2, tuple(value.shape))).to(value.dtype)
    return torch.from_numpy(rng.standard_normal(tuple(value.shape)) * rng.choice([1, 10])).to(value.dtype)


def _reads(module: nn.Module, examples: Sequence[torch.Tensor]) -> list[Read]:
    layers = _Layers(module)
    mode = _Reads(layers)
    try:
        with _followed(layers), mode:
            module(*examples)
    except _ERRORS as err:
        reason = (str(err).splitlines() or [type(err).__name__])[0][:300]
        raise BuildError(
            f"layer {_failing(module, layers, err.__traceback__)} does not run with a batch of shape "
            f"{tuple(examples[0].shape)}: {reason}"
        ) from err
    return mode.seen


def _failing(module: nn.Module, layers: _Layers, trace: TracebackType | None) -> str:
    """The innermost layer on the way to an error."""
    found: nn.Module = module
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        found = owner if isinstance(owner, nn.Module) else found
        trace = trace.tb_next
    return layers.name(found)


def layer_calling(module: nn.Module, examples: Sequence[torch.Tensor], operator: str) -> str:
    """The first layer that calls this operator (`aten::name`); the module's own kind when none is found."""
    module = copy.deepcopy(module)
    layers = _Layers(module)
    name = operator.rpartition("::")[2]
    mode = _Calls(layers, {name, name.removesuffix("_"), f"{name}_", name.removeprefix("_"), name.partition("_")[2]})
    try:
        with _followed(layers), mode:
            module(*examples)
    except _ERRORS:
        pass
    return mode.found or type(module).__name__
