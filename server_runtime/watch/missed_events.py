"""Events that a run made durable but was killed before it could tell anybody: they are told when it goes on."""

from collections.abc import Iterator
from pathlib import Path

from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.base import Planned, Reply, RoundStore
from fedwright.server_runtime.watch.history import RunHistory, read_history


def missed_events(folder: Path, store: RoundStore) -> Iterator[events.Event]:
    """What the store has and the log lacks, in the order in which it happened."""
    history = read_history(folder)
    answered = [(planned, reply) for _, planned, reply in store.ended()] + store.pending()
    for planned, reply in answered:
        if reply is not None and _is_unheard(history, planned):
            yield _answer(planned, reply)
    for closed in store.closed():
        known = history.rounds.get(closed.position.round)
        if closed.metrics and (known is None or known.closed_s is None):
            yield events.RoundClosed(closed.position.round, closed.metrics, 0.0)


def _is_unheard(history: RunHistory, planned: Planned) -> bool:
    """Whether the log has a task but not its end."""
    stages = history.evaluations if planned.task.evaluation else history.rounds
    stage = stages.get(planned.task.round)
    task = None if stage is None else stage.tasks.get(planned.device)
    return task is not None and not task.outcome


def _answer(planned: Planned, reply: Reply) -> events.Event:
    number, measures = planned.task.round, planned.task.evaluation
    if reply.update is None:
        return events.TaskFailed(number, planned.device, reply.detail, measures, reply.outcome)
    blob = "" if reply.update.tensors is None else reply.update.tensors.sha256
    return events.UpdateTaken(number, planned.device, reply.update.stats, 0.0, measures, blob)
