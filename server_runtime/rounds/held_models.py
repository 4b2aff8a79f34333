"""The models that devices keep of their last tasks, for patches; both sides forget them after a few rounds."""

from fedwright.protocol.messages import BlobRef
from fedwright.server_runtime.rounds.store.base import Position, RoundStore

# Who was in none of so many rounds gets the whole model.
ROUNDS = 4


def held_models(store: RoundStore, number: int) -> dict[str, BlobRef]:
    """The newest weights that each device had before a round and was asked to keep; its update says it has them."""
    held: dict[str, BlobRef] = {}
    for earlier in range(number - 1, max(0, number - 1 - ROUNDS), -1):
        position = Position(earlier, 0)
        plan = store.plan(position)
        replies = store.replies(position) if plan else {}
        for planned in plan or []:
            reply = replies.get(planned.task.task)
            if planned.task.keeps and reply is not None and reply.outcome == "update":
                held.setdefault(planned.device, planned.task.weights)
    return held


def kept_until_now(store: RoundStore, number: int) -> set[str]:
    """Weights that the rounds up to this one may still be patched from."""
    return _kept(store, range(max(1, number - ROUNDS + 1), number + 1))


def no_longer_kept(store: RoundStore, number: int) -> set[str]:
    """Weights of which no patch will be made after this round."""
    last = number - ROUNDS
    return _kept(store, range(last, last + 1)) if last > 0 else set()


def _kept(store: RoundStore, rounds: range) -> set[str]:
    plans = [store.plan(Position(number, 0)) or [] for number in rounds]
    return {planned.task.weights.sha256 for plan in plans for planned in plan if planned.task.keeps}
