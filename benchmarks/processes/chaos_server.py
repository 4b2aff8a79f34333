"""The server process of `bench chaos`: the command `fedwright` with every method once more, as one that keeps books.

The books are part of the method's state, so they say what is in a state that was kept: what a killed process had
folded in and not made durable is gone from both. The bench can make the process wait at the moments of a round.
"""

import sys
from dataclasses import replace
from typing import Any

from fedwright.benchmarks.processes.chaos_moments import Moments
from fedwright.server_runtime.methods import summed
from fedwright.server_runtime.methods.base import CheckedUpdate, Method, MethodState, Relay
from fedwright.server_runtime.methods.registry import METHODS, Entry
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore

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

    def advance(self) -> dict[str, float]:
        """See Method."""
        metrics: dict[str, float] = super().advance()  # type: ignore[misc]
        return metrics

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
    kept: type[Method] = type(f"{entry.name}{SUFFIX}", (Books, entry.method), {})
    return replace(entry, name=entry.name + SUFFIX, source=kept)


def main() -> int:
    """`fedwright` where one may name these methods, with moments."""
    from fedwright.cli.main import main as command

    METHODS.update({kept.name: kept for kept in map(with_books, list(METHODS.values()))})
    summed.SUMMED |= {name + SUFFIX for name in summed.SUMMED}
    moments = Moments.of_environment()
    moments.before(SqliteRoundStore, "save_plan", "planning")
    moments.after(SqliteRoundStore, "save_plan", "planned")
    moments.before(SqliteRoundStore, "save_reply", "update here")
    moments.after(SqliteRoundStore, "save_reply", "update durable")
    moments.before(SqliteRoundStore, "close_stage", "closing")
    moments.after(SqliteRoundStore, "close_stage", "closed")
    moments.before(Books, "absorb", "absorb")
    moments.before(Books, "advance", "advance")
    moments.before(SqliteRoundStore, "save_sum", "sum here")
    moments.after(SqliteRoundStore, "save_sum", "sum durable")
    moments.before(SqliteRoundStore, "end_sum", "sum closing")
    moments.after(SqliteRoundStore, "end_sum", "sum closed")
    return command()


if __name__ == "__main__":
    sys.exit(main())
