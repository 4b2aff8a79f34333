"""The server process of `bench chaos`: the command `fedwright` with every method once more, as one that keeps books.

The books are part of the method's state, so they say what is in a state that was kept: what a killed process had
folded in and not made durable is gone from both.
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from fedwright.server_runtime.methods.base import Absorbed, Method, Relay, Tensors
from fedwright.server_runtime.methods.registry import METHODS, Entry

SUFFIX = "-with-books"
BOOKS = "absorbed_tasks"


class Books:
    """Stands before a method's own class: writes down the task of every update that the method folds in."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tasks: list[str] = []

    def absorb(self, device: str, reply: Absorbed) -> Relay | None:
        """See Method."""
        self._tasks += reply.tasks
        relay: Relay | None = super().absorb(device, reply)  # type: ignore[misc]
        return relay

    def state(self) -> Tensors:
        """See Method."""
        return {**super().state(), BOOKS: np.frombuffer("\n".join(self._tasks).encode(), np.uint8)}  # type: ignore[misc]

    def restore(self, state: Tensors) -> None:
        """See Method."""
        own, self._tasks = split_books(state)
        super().restore(own)  # type: ignore[misc]


def with_books(entry: Entry) -> Entry:
    """A method that does what it did and keeps books."""
    kept: type[Method] = type(f"{entry.name}{SUFFIX}", (Books, entry.method), {})
    return replace(entry, name=entry.name + SUFFIX, source=kept)


def split_books(state: Tensors) -> tuple[Tensors, list[str]]:
    """A state without its books, and every task that was folded into it, as often as that happened."""
    rest = {name: value for name, value in state.items() if name != BOOKS}
    return rest, state[BOOKS].tobytes().decode().split()


def main() -> int:
    """`fedwright` where one may name these methods."""
    from fedwright.cli.main import main as command

    METHODS.update({kept.name: kept for kept in map(with_books, list(METHODS.values()))})
    return command()


if __name__ == "__main__":
    sys.exit(main())
