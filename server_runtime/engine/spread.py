"""The server's own work in pieces: the same pieces in the same order wherever they are done, and so the same bytes."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from fedwright.protocol.support.steps import counted

T = TypeVar("T")


@runtime_checkable
class Holds(Protocol):
    """An engine elsewhere, to which what many calls read travels once."""

    def hold(self, value: Any) -> Any:
        """What stands for the value in a call's arguments."""
        ...


def is_elsewhere(engine: Executor) -> bool:
    """Whether calls are done in other processes, several at a time."""
    return isinstance(engine, Holds)


def spread(
    engine: Executor, function: Callable[..., T], items: Sequence[Any], *shared: Any, work: str | None = None
) -> list[T]:
    """`function(item, *shared)` for every item, in their order; it MUST change nothing but what it returns.

    work: how a person is told of it.
    """
    if not isinstance(engine, Holds):
        return [function(item, *shared) for item in (items if work is None else counted(items, work))]
    held, threads = [engine.hold(value) for value in shared], torch.get_num_threads()
    begun = [engine.submit(with_threads, threads, function, item, *held) for item in items]
    return [done.result() for done in (begun if work is None else counted(begun, work))]


def with_threads(threads: int, function: Callable[..., T], *args: Any) -> T:
    """A call with as many threads of torch as the server has: sums over several are not those over one, to the bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return function(*args)
    finally:
        torch.set_num_threads(before)
