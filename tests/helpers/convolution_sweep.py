"""A program: convolutions of many forms, forward and backward, against the same in float64, in memory that is watched.

It is started with `convolution_sweep.py PREPARATION THREADS`; it prints what differs and ends with the number of cases.
A write past a buffer ends it with a signal where the C library checks its memory.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.joint_tuning import forward_of
from fedwright.server_runtime.spec import ModelSpec

TOLERANCE = 1e-4


class Case(NamedTuple):
    """A convolution, or a transposed one when `more` (its output_padding) is given, of n = 2 square maps."""

    kernel: int
    stride: int | tuple[int, int]
    channels: tuple[int, int]
    side: int
    padding: int = 0
    groups: int = 1
    side_by_side: str = "x"
    more: int | tuple[int, int] | None = None


def cases() -> Iterator[Case]:
    """Single points with a stride above all; beside them each other form once or twice."""
    for source in (1, 3, 4, 7, 8, 12, 17):
        for target in (4, 8, 20):
            yield Case(1, 2, (source, target), 16)
    for stride in ((1, 2), (2, 1), 3, 4):
        yield Case(1, stride, (4, 8), 24)
        yield Case(1, stride, (12, 8), 72)
    for source in (4, 12, 16):
        yield Case(1, 2, (source, 8), 64)
    for form in ("x", "weight", "both", "none"):
        yield Case(1, 2, (4, 8), 16, side_by_side=form)
        yield Case(3, 2, (3, 8), 9, padding=1, side_by_side=form)
    yield from (Case(1, 2, (5, 8), 15), Case(1, 2, (4, 8), 14, padding=1), Case(1, 1, (4, 8), 16))
    yield from (Case(1, 2, (8, 16), 16, groups=2), Case(1, 2, (6, 6), 16, groups=6))
    for kernel in (2, 3, 5):
        for stride in (1, 2):
            yield Case(kernel, stride, (4, 12), 12, padding=kernel // 2)
    yield from (Case(3, 1, (6, 6), 12, padding=1, groups=6), Case(3, 2, (8, 16), 12, padding=1, groups=2))
    for stride, more in ((2, 1), (2, 0), ((1, 2), (0, 1)), (3, 2)):
        yield Case(1, stride, (8, 4), 16, more=more)
    yield from (Case(1, 2, (8, 4), 32, more=1), Case(3, 2, (4, 8), 8, padding=1, more=1))


def outcome(case: Any, x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """The maps and the gradients of x, weight and bias."""
    leaves = x, weight, bias = [value.detach().requires_grad_() for value in (x, weight, bias)]
    if case.more is None:
        made = functional.conv2d(x, weight, bias, case.stride, case.padding, 1, case.groups)
    else:
        made = functional.conv_transpose2d(x, weight, bias, case.stride, case.padding, case.more, case.groups)
    pull = torch.linspace(-1, 1, made.numel(), dtype=made.dtype).sin().reshape(made.shape)
    # One at a time and without keeping any, so that every buffer is freed, and looked at, between cases.
    return [made.detach(), *(torch.autograd.grad(made, leaf, pull, retain_graph=True)[0] for leaf in leaves)]


def difference(case: Case) -> float:
    """The largest one over the largest value."""
    generator = torch.Generator().manual_seed(0)
    source, target = case.channels
    x = torch.randn(2, source, case.side, case.side, generator=generator)
    rows, columns = (target, source) if case.more is None else (source, target)
    weight = torch.randn(rows, columns // case.groups, case.kernel, case.kernel, generator=generator)
    bias = torch.randn(target, generator=generator)
    expected = outcome(case, x.double(), weight.double(), bias.double())
    if case.side_by_side in ("x", "both"):
        x = channels_beside(x)
    if case.side_by_side in ("weight", "both"):
        weight = channels_beside(weight)
    pairs = zip(outcome(case, x, weight, bias), expected, strict=True)
    return max(float((found - right).abs().max() / right.abs().max()) for found, right in pairs)


def channels_beside(x: Tensor) -> Tensor:
    """The same numbers with channels side by side, even where a side of 1 leaves that open."""
    return x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)


def overrun() -> None:
    """What the watch must notice: one byte past a buffer."""
    buffer = torch.zeros(64)
    ctypes.memset(buffer.data_ptr(), 1, buffer.nbytes + 1)


PREPARATIONS: dict[str, Callable[[], object]] = {
    "a model is made": lambda: zoo.create(ModelSpec("lenet", (1, 28, 28), 10), seed=0),
    "a module is tuned": lambda: forward_of(nn.Identity()),
    "overrun": overrun,
    "plain torch": lambda: None,
}


def main(preparation: str, threads: int) -> None:
    """Prepare, then compare all cases."""
    torch.set_num_threads(threads)
    PREPARATIONS[preparation]()
    swept = list(cases())
    for case in swept:
        found = difference(case)
        if not found < TOLERANCE:
            sys.stdout.write(f"differs by {found:.2g}: {case}\n")
    sys.stdout.write(f"{len(swept)} cases\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
