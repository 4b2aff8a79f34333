"""Opens what a run must not forget, wherever it is kept, and sees to it that one server alone writes there."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import lock_folder, replace_file
from fedwright.server_runtime.config_sections.store import without_password
from fedwright.server_runtime.rounds.orders import Order, give_order
from fedwright.server_runtime.rounds.store.base import RoundStore
from fedwright.server_runtime.rounds.store.remembered import RememberedRounds
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_folder.folder import RunFolder, claim_folder

if TYPE_CHECKING:
    import psycopg

    from fedwright.server_runtime.rounds.store.database import Row
    from fedwright.server_runtime.rounds.store.lease import Lease

log = logging.getLogger(__name__)

Waiting = Callable[[str], None]


@dataclass(frozen=True)
class Claim:
    """The rounds of a run in the hands of one server; check: raises LeaseLost when another one has them.

    keep, arrive: what else the folder holds goes to servers elsewhere, and orders come from there (shared_files.py).
    """

    store: RoundStore
    check: Callable[[], None]
    keep: Callable[[], None] = lambda: None
    arrive: Callable[[Collection[str]], None] = lambda known: None


def open_rounds(folder: RunFolder, url: str | None = None) -> RoundStore:
    """The rounds of a run, to be looked at; url: of the database, where its password is not in the environment."""
    if not folder.address.exists():
        return SqliteRoundStore(folder.store)
    from fedwright.server_runtime.rounds.store.postgres import PostgresRoundStore

    return PostgresRoundStore(url or address_of(folder), folder.path.name)


@contextmanager
def claim_rounds(
    folder: RunFolder, url: str | None, *, sync: bool = True, waiting: Waiting | None = None, bucket: bool = False
) -> Iterator[Claim]:
    """The rounds of a run, to be written: in a file of its folder, or in a database.

    waiting: told who is at work on a run in a database, which is then waited for; ConfigError without. bucket: its
    blobs are where every server finds them, so that each may have a folder of its own.
    """
    if url is None and not folder.address.exists():
        with claim_folder(folder), closing(RememberedRounds(folder.store, sync=sync)) as store:
            yield Claim(store, lambda: None)
        return
    if folder.store.exists():
        raise ConfigError(
            f"the run in {folder.path} keeps its rounds in {folder.store.name}, not in a database; leave store.rounds "
            f"out, or begin anew with --anew"
        )
    from fedwright.server_runtime.rounds.store.postgres import PostgresRoundStore, PostgresSchema
    from fedwright.server_runtime.run_folder.shared_files import SharedFiles

    url = url or address_of(folder)
    if bucket and not folder.address.exists():
        # Before the lease, so that orders may be given where a server only stands by.
        _opened(url, folder.path.name).close()
        replace_file(folder.address, without_password(url).encode())
    with _leased(url, folder, waiting) as (lease, check), lock_folder(folder.path) or nullcontext():
        known = folder.address.exists()
        with (
            closing(PostgresRoundStore(url, folder.path.name, lease=lease)) as store,
            closing(PostgresSchema(url, folder.path.name, lease=lease)) as schema,
        ):
            if store.run() is not None and not known:
                raise ConfigError(
                    f"the database holds a run {folder.path.name} whose folder is not {folder.path}; give all servers "
                    f"of a run the same run.folder or a bucket (store.blobs), or begin anew with --anew"
                )
            replace_file(folder.address, without_password(url).encode())
            files = SharedFiles(folder.path, schema, lease)
            yield Claim(store, check, files.keep, files.arrive)


def set_aside(folder: RunFolder, url: str | None = None) -> Path | None:
    """Give the run in a folder another folder beside it, and another name in its database; None when there is none."""
    url = url or (address_of(folder) if folder.address.exists() else None)
    if not folder.holds_run and url is None:
        return None
    folder.path.mkdir(parents=True, exist_ok=True)
    taken = {path.name for path in folder.path.parent.iterdir()}
    number = next(n for n in range(1, len(taken) + 2) if f"{folder.path.name}.{n}" not in taken)
    target = folder.path.with_name(f"{folder.path.name}.{number}")
    if url is None or folder.store.exists():
        with claim_folder(folder):
            folder.path.rename(target)
        return target
    with _leased(url, folder, None):
        from fedwright.server_runtime.rounds.store.postgres import rename_schema

        rename_schema(url, folder.path.name, target.name)
        folder.path.rename(target)
    return target


def address_of(folder: RunFolder) -> str:
    """The database of a run, without the password."""
    return folder.address.read_text(encoding="utf-8").strip()


@contextmanager
def _leased(url: str, folder: RunFolder, waiting: Waiting | None) -> "Iterator[tuple[Lease, Callable[[], None]]]":
    from fedwright.server_runtime.rounds.store.lease import LeaseKeeper
    from fedwright.server_runtime.rounds.store.postgres import open_schema

    run, told = folder.path.name, False
    lease, holder = _taken(_opened(url, run))
    while lease is None:
        if waiting is None:
            raise ConfigError(f"{holder} is at work on run {run}; stop it first")
        if not told:
            waiting(holder)
            told = True
        lease = _awaited(url, run)
    with LeaseKeeper(lease, lambda: open_schema(url, run)) as keeper:
        yield lease, keeper.check


def _taken(connection: "psycopg.Connection[Row]") -> "tuple[Lease | None, str]":
    """The lease if nobody holds it, and who has or had it."""
    from fedwright.server_runtime.rounds.store.lease import Lease, holder_of, own_name

    with closing(connection):
        return Lease.take(connection, own_name()), holder_of(connection)


def _awaited(url: str, run: str) -> "Lease | None":
    """The lease as soon as nobody holds it; None when the connection broke, which a server that waits outlives."""
    from fedwright.server_runtime.rounds.store.lease import LOOK_S, Lease, own_name
    from fedwright.server_runtime.rounds.store.postgres import BROKEN, first_line, open_schema

    time.sleep(LOOK_S)
    try:
        with closing(open_schema(url, run)) as connection:
            while (lease := Lease.take(connection, own_name())) is None:
                time.sleep(LOOK_S)
            return lease
    except BROKEN as err:
        log.info("the database of run %s does not answer one that stands by (%s); trying again", run, first_line(err))
        return None


def _opened(url: str, run: str) -> "psycopg.Connection[Row]":
    """A connection of a server that begins; ConfigError when nothing answers, as the address may be wrong."""
    import psycopg

    from fedwright.server_runtime.rounds.store.postgres import first_line, open_schema

    try:
        return open_schema(url, run, make=True)
    except psycopg.OperationalError as err:
        raise ConfigError(f"store.rounds: no database answers there ({first_line(err)}); is it running?") from err


def order_in(path: Path, order: Order) -> bool:
    """Make an order durable for the server of the run in a folder, wherever that is; False when it was given before."""
    fresh, folder = give_order(path, order), RunFolder(path)
    if folder.address.exists():
        from fedwright.server_runtime.run_folder.shared_files import share_order

        share_order(address_of(folder), path.name, order.id, msgspec.json.encode(order))
    return fresh
