"""Lets go of tasks whose rounds are long over, so that a run of any length keeps a bounded number of them."""

from fedwright.server_runtime.rounds.device_records import ManifestOf, add_up
from fedwright.server_runtime.rounds.store.base import RoundStore

# Rounds whose tasks stay, for whoever looks at them.
KEEP_ROUNDS = 20


def forget_old_tasks(store: RoundStore, number: int, manifest: ManifestOf) -> None:
    """After a round has closed: of tasks that are KEEP_ROUNDS older, keep what each device's came to."""
    ended = store.ended(before=number - KEEP_ROUNDS + 1)
    if ended:
        # What a measurement said, the one after the last round says better.
        rounds = [one for one in ended if not one.position.is_evaluation]
        kept = store.remnants([one.planned.device for one in rounds])
        store.forget([one.planned.task.task for one in ended], add_up(kept, rounds, manifest))
