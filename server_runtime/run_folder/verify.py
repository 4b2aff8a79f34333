"""Looks through the folder of a run for what would end it or make it learn wrongly; changes nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import BadBlob, ConfigError, FedwrightError
from fedwright.protocol.messages import BlobRef
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.methods.base import MethodState
from fedwright.server_runtime.rounds.audit import AUDIT, check_audit
from fedwright.server_runtime.rounds.store.base import Closed, Planned, Reply, RoundStore
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.rounds.store.sqlite_check import contradictions, store_problems
from fedwright.server_runtime.run_folder.blobs import BlobFiles, blob_files
from fedwright.server_runtime.run_folder.folder import RunFolder, claim_folder
from fedwright.server_runtime.run_folder.rounds import address_of, claim_rounds

FROM_COPY = "put a copy of it back, or begin anew with --anew"
NO_COPY = "put a copy of the run's folder back, or begin anew with --anew"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a run, and what to do about it."""

    what: str
    remedy: str

    def line(self) -> str:
        """For a person."""
        return f"{self.what}; {self.remedy}"


@dataclass(frozen=True)
class Verdict:
    """What was looked at, and what is wrong with it."""

    problems: list[Problem]
    rounds: int = 0
    blobs: int = 0


def verify_run(path: Path) -> Verdict:
    """Check the run in a folder; ConfigError when there is none, or a server is at work on it."""
    folder = RunFolder(path)
    if not folder.holds_run:
        raise ConfigError(f"{path} holds no run; give the folder of one, such as runs/NAME")
    if folder.address.exists():
        return _verify_database(folder)
    with claim_folder(folder):
        try:
            found = [Problem(f"{folder.store} has {what}", FROM_COPY) for what in store_problems(folder.store)]
            if found:
                return Verdict(found)
            with closing(SqliteRoundStore(folder.store)) as store:
                return _verify(folder, store)
        except (sqlite3.Error, OSError) as err:
            return Verdict([Problem(f"{folder.store} cannot be read ({err})", FROM_COPY)])


def _verify_database(folder: RunFolder) -> Verdict:
    from fedwright.server_runtime.rounds.store.postgres import PostgresSchema

    url = address_of(folder)
    with claim_rounds(folder, None) as claim, closing(PostgresSchema(url, folder.path.name)) as schema:
        found = [Problem(f"{url} has {what}", FROM_COPY) for what in contradictions(schema.rows)]
        return Verdict(found) if found else _verify(folder, claim.store)


def _verify(folder: RunFolder, store: RoundStore) -> Verdict:
    record = store.run()
    if record is None:
        return Verdict([Problem(f"{folder.store} holds no config", "start it with `fedwright server run CONFIG`")])
    closed = store.closed()
    wanted = dict(_needed(store.pending()))
    # The state may be what devices are sent as well.
    wanted = {sha256: what for sha256, what in wanted.items() if sha256 not in {last.state for last in closed[-1:]}}
    problems = list(_audit_problems(folder, closed[-1].position.round if closed else 0))
    try:
        config = config_from_text(record.config, where=f"the config of {folder.path}")
    except FedwrightError as err:
        return Verdict([*problems, Problem(str(err), "use the release that began this run")])
    with blob_files(folder, config, record) as files:
        problems += _state_problems(files, closed[-1:])
        found = [_blob_problem(files, sha256, what) for sha256, what in wanted.items()]
    problems += [problem for problem in found if problem is not None]
    return Verdict(problems, closed[-1].position.round if closed else 0, len(wanted) + len(closed[-1:]))


def _audit_problems(folder: RunFolder, rounds: int) -> Iterator[Problem]:
    """Where the audit log was changed or cut; a run of an earlier release has none."""
    file = folder.path / AUDIT
    problem = check_audit(folder.path).missing(rounds) if file.exists() else ""
    if problem:
        yield Problem(f"{file} was changed or damaged: {problem}", "put a copy of it back; the run itself can go on")


def _state_problems(files: BlobFiles, last: list[Closed]) -> Iterator[Problem]:
    """What is wrong with the state that the next round begins from."""
    for closed in last:
        what = f"the state after round {closed.position.round}"
        problem = _blob_problem(files, closed.state, what)
        if problem is not None:
            yield problem
            return
        try:
            state = MethodState.read(files.file_of(closed.state))
        except BadBlob as err:
            yield Problem(f"{what} cannot be read: {err}", NO_COPY)
            return
        for name, values in sorted(state.tensors.items()):
            if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
                yield Problem(f"{what} holds values in {name} that are not finite", NO_COPY)


def _needed(pending: list[tuple[Planned, Reply | None]]) -> Iterator[tuple[str, str]]:
    """The blobs that the run cannot go on without, and what each is."""
    for planned, reply in pending:
        task, whose = planned.task, f"of {planned.device} in {planned.task.title}"
        refs: dict[str, BlobRef | None] = {"the weights": task.weights, "the side inputs": task.sides}
        refs |= {"the frozen base": task.frozen, "the public rows": task.public}
        if reply is not None and reply.update is not None:
            refs["the update"] = reply.update.tensors
        yield from ((ref.sha256, f"{what} {whose}") for what, ref in refs.items() if ref is not None)


def _blob_problem(files: BlobFiles, sha256: str, what: str) -> Problem | None:
    """What is wrong with a blob's file."""
    file, place = files.file_of(sha256), f"{files.place}/{sha256}"
    if not file.is_file():
        return Problem(f"{what} is missing ({place})", FROM_COPY)
    if make_ref(file, inline=False).sha256 != sha256:
        return Problem(f"{what} is damaged: the bytes of {place} are not those of its name", FROM_COPY)
    return None
