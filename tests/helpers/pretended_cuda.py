"""A CUDA device on a machine without one: tensors that are told to go there compute here, and mix with no others.

torch's own FakeTensorMode has no values, so that no method would come past its first `float(loss)`; and without CUDA it
cannot move a tensor either. Here values are real, and what a tensor's memory is on is written down beside it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda:0")
# CUDA takes indices of the other side, and copies are how tensors come and go.
MAY_MIX = {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_", "aten::index_put", "aten::set_"}
MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda}


class Memory:
    """Which storages are on the pretended device; they are kept, so that no other one gets their place."""

    def __init__(self) -> None:
        self._there: dict[int, Any] = {}

    @property
    def count(self) -> int:
        """How many storages were there in all."""
        return len(self._there)

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor is there."""
        return tensor.untyped_storage()._cdata in self._there

    def take(self, values: Any) -> Any:
        """Say that these tensors are there."""
        for tensor in _tensors(values):
            storage = tensor.untyped_storage()
            self._there[storage._cdata] = storage
        return values


class _Kernels(TorchDispatchMode):
    """Every kernel, in the backward pass too: its tensors are all there or all here."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        there = [tensor for tensor in given if self._memory.has(tensor)]
        name = func.name().partition(".")[0]
        if there and name not in MAY_MIX and any(t.dim() and not self._memory.has(t) for t in given):
            raise RuntimeError(f"Expected all tensors to be on the same device: {name} mixes cuda:0 and cpu")
        result = func(*args, **kwargs)
        if there and name != "aten::copy_" and (name != "aten::index" or self._memory.has(given[0])):
            self._memory.take(result)
        return result


class _Surface(TorchFunctionMode):
    """What a program asks of tensors: where they are, to go elsewhere, to be made there."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:
            return CUDA if self._memory.has(args[0]) else func(*args)
        if func in (Tensor.numpy, Tensor.__array__) and self._memory.has(args[0]):
            raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")
        if func in MOVES:
            return self._moved(func, args, kwargs)
        if _is_cuda(kwargs.get("device")):
            if kwargs.get("generator") is not None:
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
            kwargs["device"] = "cpu"
            return self._memory.take(func(*args, **kwargs).clone())
        return func(*args, **kwargs)

    def _moved(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        places = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, (str, torch.device, Tensor))]
        here = self._memory.has(args[0])
        to = here
        if func is not Tensor.to:
            to = func is Tensor.cuda
        elif places:
            to = self._memory.has(places[0]) if isinstance(places[0], Tensor) else _is_cuda(places[0])
        plain = [torch.device("cpu") if isinstance(value, (str, torch.device)) else value for value in args[1:]]
        named = {name: "cpu" if name == "device" else value for name, value in kwargs.items()}
        with torch._C._DisableTorchDispatch() if to == here else _nothing():
            result = args[0].to(*plain, **named) if func is Tensor.to else args[0]
        if to == here:
            return self._memory.take(result) if here else result
        # Through a copy that the backward pass knows, whose memory is its own.
        return _Carry.apply(result, self._memory, to)  # type: ignore[no-untyped-call]


class _Carry(torch.autograd.Function):
    """A copy on the other side; its gradient goes back."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, memory: Memory, to: bool) -> Tensor:
        ctx.memory, ctx.to = memory, to
        with torch._C._DisableTorchDispatch():
            copied = value.detach().clone()
        return memory.take(copied) if to else copied

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch._C._DisableTorchDispatch():
            copied = grad.clone()
        return (copied if ctx.to else ctx.memory.take(copied)), None, None


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def pretended_cuda() -> Iterator[Memory]:
    """Inside, "cuda" is a device; what mixes it with "cpu" fails as it does with a real one."""
    memory = Memory()
    with _Kernels(memory), _Surface(memory):
        yield memory


def _is_cuda(place: Any) -> bool:
    return place is not None and str(place).startswith("cuda")


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
