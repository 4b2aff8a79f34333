"""The server process of `bench chaos`: the command `fedwright` with every method once more, as one that keeps books.

The books are part of the method's state, so they say what is in a state that was kept: what a killed process had
folded in and not made durable is gone from both.
"""

import sys
from dataclasses import replace
from typing import Any

from fedwright.server_runtime.methods.base import CheckedUpdate, Entry, Method, MethodState, Relay

SUFFIX = "-with-books"
BOOKS = "absorbed_tasks"


class Books:
    """Stands before a method's own class: writes down the task of every update that the method folds in."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tasks: list[str] = []

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """See Method."""
        self._tasks += update.tasks
        relay: Relay | None = super().absorb(device, update)  # type: ignore[misc]
        return relay

    def state(self) -> MethodState:
        """See Method."""
        state: MethodState = super().state()  # type: ignore[misc]
        return state | MethodState.of(None, **{BOOKS: self._tasks})

    def restore(self, state: MethodState) -> None:
        """See Method."""
        self._tasks = state.record(BOOKS, list[str])
        super().restore(state)  # type: ignore[misc]


def with_books(entry: Entry) -> Entry:
    """A method that does what it did and keeps books."""
    assert isinstance(entry.make, type)
    kept: type[Method] = type(f"{entry.name}{SUFFIX}", (Books, entry.make), {})
    return replace(entry, name=entry.name + SUFFIX, make=kept)


def main() -> int:
    """`fedwright` where one may name these methods."""
    from fedwright.cli.main import main as command
    from fedwright.server_runtime.methods.base import register
    from fedwright.server_runtime.methods.registry import METHODS

    for entry in list(METHODS.values()):
        register(with_books(entry))
    return command()


if __name__ == "__main__":
    sys.exit(main())
