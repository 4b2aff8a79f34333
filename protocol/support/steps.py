"""How far long work is: whoever does it says so, and a command that has a terminal shows it; else nobody listens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
# What is done, how much of it is done, and of how much.
Listener = Callable[[str, int, int], None]
_listeners: list[Listener] = []


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside the block the listener alone hears of all work of this process; when all of it is done, that is over."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(what: str, done: int, of: int) -> None:
    """Say that so much of some work is done; of no work nothing is said."""
    if _listeners and of:
        _listeners[-1](what, done, of)


@contextmanager
def steps(what: str, count: int) -> Iterator[Callable[[], None]]:
    """Work of so many steps; what the block is given is called after each of them. The block's end is the work's."""
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        tell(what, done, count)

    tell(what, 0, count)
    try:
        yield advance
    finally:
        tell(what, count, count)


def counted(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items one by one, each a step of the work."""
    with steps(what, len(items)) as advance:
        for item in items:
            yield item
            advance()
