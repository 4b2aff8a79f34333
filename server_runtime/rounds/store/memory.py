"""In-memory twin of the round store, for tests and simulation; forgets all when the process ends."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fedwright.protocol.errors import RoundError
from fedwright.server_runtime.rounds.store.base import (
    Closed,
    EndedTask,
    Planned,
    Position,
    Remnant,
    Reply,
    RunRecord,
    check_same_run,
    evaluation_after,
)


class MemoryRoundStore:
    """A RoundStore that lives in this process only."""

    def __init__(self) -> None:
        self._run: RunRecord | None = None
        self._plans: dict[Position, list[Planned]] = {}
        self._notes: dict[Position, bytes] = {}
        self._replies: dict[str, Reply] = {}
        self._sums: dict[str, bytes] = {}
        self._closed: list[Closed] = []
        self._remnants: dict[str, Remnant] = {}

    def save_run(self, record: RunRecord) -> None:
        """See RoundStore."""
        if self._run is not None:
            raise RoundError(f"this store already holds run {self._run.run}; use another folder for run {record.run}")
        self._run = record

    def run(self) -> RunRecord | None:
        """See RoundStore."""
        return self._run

    def update_run(self, record: RunRecord) -> None:
        """See RoundStore."""
        check_same_run(self._run, record)
        self._run = record

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
        self._replies[reply.task] = reply.without_bytes()
        for plan in self._plans.values():
            if retry is not None and any(entry.task.task == reply.task for entry in plan):
                plan.append(retry)
        return True

    def save_replies(self, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        known = [reply.task for reply in replies if reply.task in self._replies]
        if known:
            raise RoundError(f"task {known[0]} has a reply already; it cannot get another with its pool")
        self._replies.update({reply.task: reply.without_bytes() for reply in replies})

    def reject(self, tasks: Sequence[str], detail: str) -> None:
        """See RoundStore."""
        self._replies.update({task: Reply(task, "rejected", detail=detail) for task in tasks})

    def replies(self, position: Position) -> dict[str, Reply]:
        """See RoundStore."""
        tasks = [planned.task.task for planned in self._plans.get(position, [])]
        return {task: self._replies[task] for task in tasks if task in self._replies}

    def reply(self, task: str) -> Reply | None:
        """See RoundStore."""
        last = {kept.last.task: kept.last for kept in self._remnants.values() if kept.last is not None}
        return self._replies.get(task) or last.get(task)

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

    def save_sum(self, name: str, record: bytes) -> None:
        """See RoundStore."""
        self._sums[name] = record

    def sum(self, name: str) -> bytes | None:
        """See RoundStore."""
        return self._sums.get(name)

    def end_sum(self, name: str, replies: Sequence[Reply]) -> None:
        """See RoundStore."""
        self._replies.update({reply.task: reply.without_bytes() for reply in replies})
        self._sums.pop(name, None)

    def roll_back(self, number: int) -> None:
        """See RoundStore."""
        self._sums.clear()
        gone = [place for place in self._plans if place.round > number or place == evaluation_after(number)]
        for place in gone:
            for planned in self._plans.pop(place):
                self._replies.pop(planned.task.task, None)
            del self._notes[place]
        self._closed = [closed for closed in self._closed if closed.position.round <= number]
        detail = f"the run was rolled back to round {number}"
        for planned, reply in self.pending():
            task = planned.task.task
            self._replies[task] = Reply(task, "late" if reply is None else "rejected", detail=detail)

    def ended(self, *, before: int | None = None) -> list[EndedTask]:
        """See RoundStore."""
        absorbed = {task for closed in self._closed for task in closed.absorbed}
        found = []
        for position, plan in sorted(self._plans.items()):
            for planned in plan:
                reply = self._replies.get(planned.task.task)
                over = reply is not None and (reply.outcome != "update" or reply.task in absorbed)
                if (before is None or position.round < before) and (over or position.is_evaluation):
                    found.append(EndedTask(position, planned, reply))
        return found

    def forget(self, tasks: Sequence[str], remnants: Mapping[str, Remnant]) -> None:
        """See RoundStore."""
        gone = set(tasks)
        self._remnants.update(remnants)
        self._replies = {task: reply for task, reply in self._replies.items() if task not in gone}
        touched = {where for where, plan in self._plans.items() if any(one.task.task in gone for one in plan)}
        for where in touched:
            self._plans[where] = [planned for planned in self._plans[where] if planned.task.task not in gone]
            if not self._plans[where]:
                del self._plans[where], self._notes[where]
        self._closed = [
            replace(closed, absorbed=tuple(task for task in closed.absorbed if task not in gone))
            for closed in self._closed
        ]

    def remnants(self, devices: Collection[str] | None = None) -> dict[str, Remnant]:
        """See RoundStore."""
        return {d: kept for d, kept in self._remnants.items() if devices is None or d in devices}

    def close(self) -> None:
        """See RoundStore."""
