"""Takes the last rounds of a run back, so that it goes on from the state that an earlier round left."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.rounds.audit import AUDIT, AuditLog, orderer
from fedwright.server_runtime.rounds.spent_blobs import spent_blobs
from fedwright.server_runtime.rounds.store.base import Closed, RoundStore
from fedwright.server_runtime.rounds.store.storage_errors import plain_storage_errors
from fedwright.server_runtime.run_folder.blobs import claim_blobs
from fedwright.server_runtime.run_folder.folder import RunFolder, kind_of
from fedwright.server_runtime.run_folder.rounds import claim_rounds


def rounds_kept(store: RoundStore, blobs: BlobStore) -> list[int]:
    """Rounds that a run can be taken back to: those whose state is still there, but for the last."""
    ends = _ends(store.closed())
    return [number for number, closed in list(ends.items())[:-1] if blobs.has(closed.state)]


def rollback(path: Path, number: int) -> int:
    """Let the run in a folder stand where it stood after a round; returns how many rounds were taken back.

    What devices keep to themselves, such as personal layers, is not taken back.
    """
    folder = RunFolder(path)
    if not folder.holds_run:
        raise ConfigError(f"{path} holds no run; give the folder of one, such as runs/NAME")
    with plain_storage_errors(folder.store), claim_rounds(folder, None) as claim, ExitStack() as stack:
        store = claim.store
        record = store.run()
        if record is None or kind_of(record, folder) == "simulated":
            raise ConfigError(f"{path} holds no run over a broker; a simulation is done again with --anew")
        config = config_from_text(record.config, where=f"the config of {path}")
        blobs = stack.enter_context(claim_blobs(folder, config, record, check=claim.check))
        kept = rounds_kept(store, blobs)
        if number not in kept:
            choice = f"it can go back to {_listed(kept)}" if kept else "it cannot go back at all"
            raise ConfigError(f"the run in {path} cannot be rolled back to round {number}; {choice}")
        ends = _ends(store.closed())
        spent = {closed.state for closed in store.closed() if closed.position.round > number}
        spent |= {ref for planned, reply in store.pending() for ref in spent_blobs(planned, reply)}
        # Ids of tasks that follow must be others, or devices would take them for those that they have done.
        store.update_run(replace(record, rollbacks=record.rollbacks + 1))
        store.roll_back(number)
        with closing(AuditLog(path / AUDIT, keep=claim.keep)) as audit:
            audit.append("rolled back", to=number, **orderer())
            audit.flush()
        for sha256 in spent - {closed.state for closed in store.closed()}:
            blobs.remove(sha256)
        return max(ends) - number


def _ends(closed: Sequence[Closed]) -> dict[int, Closed]:
    """The last stage of each round that is over, in the order of the rounds."""
    return {one.position.round: one for one in closed if one.metrics}


def _listed(numbers: Sequence[int]) -> str:
    return f"round {numbers[0]}" if len(numbers) == 1 else f"rounds {', '.join(map(str, numbers))}"
