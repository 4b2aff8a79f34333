"""The round store of the one server that writes it: what that server asks again and again it reads from memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedwright.server_runtime.rounds.store.base import Closed, Planned, Position, Remnant, Reply
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore


class RememberedRounds(SqliteRoundStore):
    """A RoundStore that nobody else writes to while it is open: the latest stage and all closed ones are in memory.

    What is written goes to disk first; whatever cannot be followed in memory is read anew.
    """

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        super().__init__(path, sync=sync)
        self._stage: Position | None = None
        self._plan: list[Planned] = []
        self._replies: dict[str, Reply] = {}
        self._closed: list[Closed] | None = None

    def save_plan(self, position: Position, plan: Sequence[Planned], *, notes: bytes = b"") -> None:
        """See RoundStore."""
        super().save_plan(position, plan, notes=notes)
        self._stage, self._plan, self._replies = position, list(plan), {}

    def plan(self, position: Position) -> list[Planned] | None:
        """See RoundStore."""
        return list(self._plan) if position == self._stage else super().plan(position)

    def extend_plan(self, position: Position, more: Sequence[Planned]) -> None:
        """See RoundStore."""
        super().extend_plan(position, more)
        if position == self._stage:
            self._plan += more

    def save_reply(self, reply: Reply, *, retry: Planned | None = None) -> bool:
        """See RoundStore."""
        saved = super().save_reply(reply, retry=retry)
        if retry is not None:
            self._forget_stage()
        elif saved:
            self._note([reply])
        return saved

    def save_replies(self, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        super().save_replies(replies)
        self._note(replies)

    def replies(self, position: Position) -> dict[str, Reply]:
        """See RoundStore."""
        if position != self._stage:
            return super().replies(position)
        tasks = [planned.task.task for planned in self._plan]
        return {task: self._replies[task] for task in tasks if task in self._replies}

    def reject(self, tasks: Sequence[str], detail: str) -> None:
        """See RoundStore."""
        self._forget_stage()
        super().reject(tasks, detail)

    def end_sum(self, name: str, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        self._forget_stage()
        super().end_sum(name, replies)

    def close_stage(self, closed: Closed) -> None:
        """See RoundStore."""
        super().close_stage(closed)
        if self._closed is not None:
            self._closed = sorted([*self._closed, closed], key=lambda one: one.position)

    def closed(self) -> list[Closed]:
        """See RoundStore."""
        if self._closed is None:
            self._closed = super().closed()
        return list(self._closed)

    def roll_back(self, number: int) -> None:
        """See RoundStore."""
        self._forget_stage()
        self._closed = None
        super().roll_back(number)

    def forget(self, tasks: Sequence[str], remnants: Mapping[str, Remnant]) -> None:
        """See RoundStore."""
        super().forget(tasks, remnants)
        gone = set(tasks)
        if any(planned.task.task in gone for planned in self._plan):
            self._forget_stage()
        if self._closed is not None:
            self._closed = [_without(one, gone) for one in self._closed]

    def _note(self, replies: Sequence[Reply]) -> None:
        """Remember replies; those of other stages are of no use here and stay out of `replies` anyway."""
        self._replies.update({reply.task: reply.without_bytes() for reply in replies})

    def _forget_stage(self) -> None:
        self._stage, self._plan, self._replies = None, [], {}


def _without(closed: Closed, gone: set[str]) -> Closed:
    left = tuple(task for task in closed.absorbed if task not in gone)
    return closed if len(left) == len(closed.absorbed) else replace(closed, absorbed=left)
