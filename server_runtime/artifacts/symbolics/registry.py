"""The registry of own symbolics, and what they share.

They write the operators of programs that torch.export captured as well as those that the tracing exporter follows:
arguments are Python's own, or values of the one or the other.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts import plain_fourier as _plain_fourier  # noqa: F401 (registers its forms)
from fedwright.server_runtime.artifacts.autodiff.graph import OPSET
from fedwright.server_runtime.artifacts.plain_forms import PlainForms

# An operator of our own, in graphs under construction only: passes its input on, and no gradient back.
DOMAIN, STOP = "fedwright", "Stop"
Symbolic = Callable[..., Any]
SYMBOLICS: dict[str, Symbolic] = {}


def symbolic(*names: str) -> Callable[[Symbolic], Symbolic]:
    """Register how these operators are written."""

    def register(function: Symbolic) -> Symbolic:
        SYMBOLICS.update(dict.fromkeys(names, function))
        return function

    return register


class Uncaptured(Exception):
    """What torch.export captured cannot be written; the tracing exporter has a try."""


@contextmanager
def plainly() -> Iterator[None]:
    """Other forms of functions in force, no warnings, no fused attention path (it cannot be differentiated)."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            with PlainForms(), torch.enable_grad():
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _no_log(verbose: bool) -> Iterator[None]:
    yield


@contextmanager
def quiet_tracing() -> Iterator[None]:
    """The same for the tracing exporter, with own symbolics in force and no notes of the exporter."""
    from torch.onnx._internal.torchscript_exporter import utils

    # It turns the exporter's log on, whatever it is asked for, and then a graph that fails is printed whole.
    logging, utils.setup_onnx_logging = utils.setup_onnx_logging, _no_log
    for name, function in SYMBOLICS.items():
        torch.onnx.register_custom_op_symbolic(name, function, OPSET)  # type: ignore[attr-defined]
    try:
        with plainly():
            yield
    finally:
        for name in SYMBOLICS:
            torch.onnx.unregister_custom_op_symbolic(name, OPSET)  # type: ignore[attr-defined]
        utils.setup_onnx_logging = logging


def _traced(value: Any) -> bool:
    """Is this a value of the tracing exporter?"""
    return isinstance(value, torch._C.Value)


def _known(value: Any, kind: str, name: str) -> Any:
    """What is known of a value while tracing."""
    if not _traced(value):
        return value
    from torch.onnx import symbolic_helper

    return symbolic_helper._get_const(value, kind, name)


def whole(value: Any, name: str) -> int:
    """A number that is known while tracing."""
    return int(_known(value, "i", name))


def wholes(value: Any, name: str) -> list[int]:
    """Numbers that are known while tracing."""
    return list(_known(value, "is", name))


def number(value: Any, name: str) -> float:
    """A fraction that is known while tracing."""
    return float(_known(value, "f", name))


def constant(g: Any, value: Any) -> Any:
    """A constant of the graph."""
    return g.op("Constant", value_t=value if isinstance(value, torch.Tensor) else torch.tensor(value))


def sizes_of(value: Any, operator: str) -> list[int]:
    """The sizes of a value that are known while tracing (None = free)."""
    if _traced(value):
        from torch.onnx import symbolic_helper

        sizes = symbolic_helper._get_tensor_sizes(value)
    else:
        sizes = value.sizes
    if sizes is None:
        raise UnsupportedOperator(f"{operator} of unknown rank", "not exported", "")
    return list(sizes)


def is_none(value: Any) -> bool:
    """Was this argument left out?"""
    return value is None or (_traced(value) and value.node().mustBeNone())


def rank_of(value: Any, operator: str) -> int:
    """How many axes a value has."""
    return len(sizes_of(value, operator))


def known_sizes(value: Any, axes: list[int], operator: str) -> list[int]:
    """The sizes along these axes, which must not be free."""
    sizes = [sizes_of(value, operator)[axis] for axis in axes]
    if any(size is None for size in sizes):
        raise UnsupportedOperator(f"{operator} over a free size", "not exported", "")
    return sizes
