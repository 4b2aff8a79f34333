"""Rounds in which most updates cannot be believed: they are left out, and the run goes on instead of ending.

A model that hostile devices have led astray makes the training of honest ones diverge, so that theirs are the updates
that are rejected. The first such round leaves the model as it is; with the second in a row the run goes back to the
model that the median device had the least loss with. Who is rejected with that one too no longer counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedwright.protocol.errors import NoQuorum
from fedwright.server_runtime.rounds.store.base import Closed, Planned, Position, Reply, RoundStore

# Marks a round in the metrics that it leaves.
SPOILT = "spoilt"
# The loss that the median device had with the model that it was sent.
LOSS_BEFORE = "loss_before"
# How many rounds back it is looked up how a device's last update was received.
LOOK_BACK = 20
ADVICE = (
    "the updates are hostile, or train.learning_rate is too high; find the devices with `fedwright server audit`, or "
    "set update.combine = 'outliers'"
)


@dataclass(frozen=True)
class Verdicts:
    """Devices of one round whose update was believed, and those whose update was rejected."""

    believed: frozenset[str]
    rejected: frozenset[str]

    @classmethod
    def of(cls, plan: Iterable[Planned], replies: Mapping[str, Reply]) -> "Verdicts":
        """As the replies say; of a device with several tasks the update counts."""
        outcomes: dict[str, set[str]] = {"update": set(), "rejected": set()}
        for planned in plan:
            reply = replies.get(planned.task.task)
            if reply is not None and reply.outcome in outcomes:
                outcomes[reply.outcome].add(planned.device)
        return cls(frozenset(outcomes["update"]), frozenset(outcomes["rejected"] - outcomes["update"]))

    @property
    def answered(self) -> int:
        """How many devices sent something, whatever it was worth."""
        return len(self.believed) + len(self.rejected)

    def is_spoilt(self, lately: Iterable[str]) -> bool:
        """Whether nobody is believed, or most of those are rejected who were believed before (lately)."""
        before = set(lately)
        lost = len(before & self.rejected)
        return bool(self.rejected) and (not self.believed or 2 * lost > lost + len(before & self.believed))


def require_quorum(plan: Sequence[Planned], replies: Mapping[str, Reply], quorum: int, number: int) -> None:
    """Raise NoQuorum when fewer devices of a stage than it needs have sent anything."""
    answered = Verdicts.of(plan, replies).answered
    if answered < quorum:
        raise no_quorum(replies, number, f"{answered} of the {quorum} updates it needs")


def no_quorum(replies: Mapping[str, Reply], number: int, got: str) -> NoQuorum:
    """The error of a round that cannot go on without other answers."""
    problems = "; ".join(sorted({reply.detail for reply in replies.values() if reply.detail}))
    return NoQuorum(
        f"round {number} got {got} ({problems or 'no answer before the deadline'}); mend the devices, then resume the "
        f"run"
    )


def in_a_row(closed: Sequence[Closed]) -> int:
    """How many of the last rounds were spoilt."""
    count = 0
    for one in reversed([one for one in closed if one.metrics]):
        if not one.metrics.get(SPOILT):
            break
        count += 1
    return count


def has_learnt(closed: Sequence[Closed]) -> bool:
    """Whether any round was not spoilt."""
    return any(one.metrics and not one.metrics.get(SPOILT) for one in closed)


def lately_believed(store: RoundStore, number: int, devices: Iterable[str]) -> set[str]:
    """Those of the devices whose update was believed in the last round before this one that had one of theirs.

    Spoilt rounds say nothing of a device, and after two of them nobody has a name to lose.
    """
    closed = store.closed()
    if in_a_row(closed) >= 2:
        return set()
    spoilt = {one.position.round for one in closed if one.metrics.get(SPOILT)}
    unknown, found = set(devices), set[str]()
    for earlier in range(number - 1, max(0, number - 1 - LOOK_BACK), -1):
        position = Position(earlier, 0)
        if not unknown or earlier in spoilt:
            continue
        verdicts = Verdicts.of(store.plan(position) or (), store.replies(position))
        found |= unknown & verdicts.believed
        unknown -= verdicts.believed | verdicts.rejected
    return found


def best_round(closed: Sequence[Closed]) -> int | None:
    """The round whose model the median device had the least loss with; 0 is the first model, None: nobody knows."""
    found = {
        one.position.round - 1: one.metrics[LOSS_BEFORE]
        for one in closed
        if LOSS_BEFORE in one.metrics and not one.metrics.get(SPOILT)
    }
    return min(found, key=lambda number: (found[number], number)) if found else None


def best_state(closed: Sequence[Closed]) -> str | None:
    """The blob of that model; None where it is the first one or nobody knows."""
    best = best_round(closed)
    return next((one.state for one in reversed(closed) if one.position.round == best), None)
