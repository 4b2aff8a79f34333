"""In-memory twin of the round store, for tests and simulation; forgets all when the process ends."""

from collections.abc import Sequence

from fedwright.protocol.errors import RoundError
from fedwright.server_runtime.rounds.store.base import Closed, Planned, Position, Reply, RunRecord


class MemoryRoundStore:
    """A RoundStore that lives in this process only."""

    def __init__(self) -> None:
        self._run: RunRecord | None = None
        self._plans: dict[Position, list[Planned]] = {}
        self._notes: dict[Position, bytes] = {}
        self._replies: dict[str, Reply] = {}
        self._closed: list[Closed] = []

    def save_run(self, record: RunRecord) -> None:
        """See RoundStore."""
        if self._run is not None:
            raise RoundError(f"this store already holds run {self._run.run}; use another folder for run {record.run}")
        self._run = record

    def run(self) -> RunRecord | None:
        """See RoundStore."""
        return self._run

    def save_plan(self, position: Position, plan: Sequence[Planned], *, notes: bytes = b"") -> None:
        """See RoundStore."""
        if position in self._plans:
            raise RoundError(f"round {position.round} stage {position.stage} is planned already")
        self._plans[position] = list(plan)
        self._notes[position] = notes

    def notes(self, position: Position) -> bytes:
        """See RoundStore."""
        return self._notes.get(position, b"")

    def plan(self, position: Position) -> list[Planned] | None:
        """See RoundStore."""
        plan = self._plans.get(position)
        return None if plan is None else list(plan)

    def extend_plan(self, position: Position, more: Sequence[Planned]) -> None:
        """See RoundStore."""
        self._plans[position] += more

    def save_reply(self, reply: Reply, *, retry: Planned | None = None) -> bool:
        """See RoundStore."""
        if reply.task in self._replies:
            return False
        self._replies[reply.task] = reply
        for plan in self._plans.values():
            if retry is not None and any(entry.task.task == reply.task for entry in plan):
                plan.append(retry)
        return True

    def save_replies(self, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        known = [reply.task for reply in replies if reply.task in self._replies]
        if known:
            raise RoundError(f"task {known[0]} has a reply already; it cannot get another with its pool")
        self._replies.update({reply.task: reply for reply in replies})

    def replies(self, position: Position) -> dict[str, Reply]:
        """See RoundStore."""
        tasks = [planned.task.task for planned in self._plans.get(position, [])]
        return {task: self._replies[task] for task in tasks if task in self._replies}

    def reply(self, task: str) -> Reply | None:
        """See RoundStore."""
        return self._replies.get(task)

    def is_open(self, task: str) -> bool:
        """See RoundStore."""
        planned = any(entry.task.task == task for plan in self._plans.values() for entry in plan)
        return planned and task not in self._replies

    def pending(self) -> list[tuple[Planned, Reply | None]]:
        """See RoundStore."""
        planned = {entry.task.task: entry for plan in self._plans.values() for entry in plan}
        absorbed = {task for closed in self._closed for task in closed.absorbed}
        waiting: list[tuple[Planned, Reply | None]] = [
            (entry, None) for task, entry in planned.items() if task not in self._replies
        ]
        return waiting + [
            (planned[task], reply)
            for task, reply in self._replies.items()
            if reply.outcome == "update" and task not in absorbed
        ]

    def close_stage(self, closed: Closed) -> None:
        """See RoundStore."""
        self._closed.append(closed)

    def closed(self) -> list[Closed]:
        """See RoundStore."""
        return list(self._closed)

    def close(self) -> None:
        """See RoundStore."""
