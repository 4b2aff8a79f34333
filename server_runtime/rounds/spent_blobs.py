"""Blobs that nobody needs any more: those of tasks that are over, and states that no run goes back to."""

from collections.abc import Sequence

from fedwright.protocol.task_blobs import own_blobs
from fedwright.server_runtime.rounds.spoilt_rounds import best_state
from fedwright.server_runtime.rounds.store.base import Closed, Planned, Reply


def spent_blobs(planned: Planned, reply: Reply | None) -> list[str]:
    """Blobs that belong to one task only; artifacts and frozen bases are shared and stay."""
    refs = own_blobs(planned.task)
    if reply is not None and reply.update is not None and reply.update.tensors is not None:
        refs.append(reply.update.tensors)
    return [ref.sha256 for ref in refs]


def outdated_states(closed: Sequence[Closed], keep: int) -> set[str]:
    """Blobs of states that nothing can go back to: not the best, nor those after the last `keep` rounds."""
    last = {one.position.round: one.state for one in closed}
    kept = {last[number] for number in sorted(last)[-keep:]} | {best_state(closed)}
    # Those of earlier rounds went when their time came.
    recent = [one for one in closed if one.position.round >= closed[-1].position.round - keep - 1]
    no_longer_best = best_state(closed[:-1])
    return ({one.state for one in recent} | ({no_longer_best} if no_longer_best else set())) - kept
