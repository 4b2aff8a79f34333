"""The round store in PostgreSQL: one schema per run; acts happen once although connections break, by one server alone.

Every act writes its own token into the row of the lease. After a connection was lost in the middle, that token says
whether the act had happened; a server whose lease another one has taken finds no row to write into and is stopped.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import psycopg
from psycopg import errors, sql

from fedwright.protocol.errors import ConfigError, RoundError, StorageError
from fedwright.server_runtime.rounds.store.database import Conflict, Parameters, Row, Statements
from fedwright.server_runtime.rounds.store.lease import LEASE_S, LEASE_TABLE, PATIENCE_S, Lease
from fedwright.server_runtime.rounds.store.sql import TABLES, SqlRoundStore

T = TypeVar("T")
VERSION = 1
# Names are cut behind so many bytes.
MOST_NAME_BYTES = 63
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 2.0
# What a network that went away without a word must not take longer than.
CONNECTION = {
    "connect_timeout": 5,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 8000,
    "application_name": "fedwright",
    "client_encoding": "utf8",
    "autocommit": True,
}
_POSTGRES_TABLES = (
    TABLES.replace("number INTEGER PRIMARY KEY", "number BIGSERIAL PRIMARY KEY")
    .replace("INTEGER", "BIGINT")
    .replace("BLOB", "BYTEA")
    # SQLite numbers the rows of every table by itself.
    .replace("task_id TEXT PRIMARY KEY, round", "rowid BIGSERIAL, task_id TEXT PRIMARY KEY, round")
)
_AGAIN = (errors.SerializationFailure, errors.DeadlockDetected)
BROKEN = (psycopg.OperationalError, psycopg.InterfaceError, errors.IdleInTransactionSessionTimeout)


class PostgresRoundStore(SqlRoundStore):
    """A RoundStore in a schema of a PostgreSQL database; without a lease it can only be read.

    url: postgresql://user@host:5432/database; run: names the schema.
    """

    def __init__(self, url: str, run: str, *, lease: Lease | None = None) -> None:
        super().__init__(PostgresSchema(url, run, lease=lease))


class PostgresSchema:
    """A Database in one schema."""

    def __init__(self, url: str, run: str, *, lease: Lease | None = None) -> None:
        self._url, self._run, self._lease = url, run, lease
        self._connection: psycopg.Connection[Row] | None = None
        # Who has just taken a run over must not end because a busy machine lets one connection wait too long.
        if lease is None:
            self._connected()
        else:
            self.insist(lambda connection: None)

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        """See Database."""
        return self.insist(lambda connection: _Statements(connection).rows(query, parameters))

    def act(self, work: Callable[[Statements], T]) -> T:
        """See Database."""
        if self._lease is None:
            raise RoundError(f"the run {self._run} was opened to be read; another server may be at work on it")
        lease, token, done = self._lease, os.urandom(16), list[T]()

        def once(connection: psycopg.Connection[Row]) -> T:
            if done and lease.last_act(connection) == token:
                return done[0]
            done.clear()
            with connection.transaction():
                lease.renew(connection, token=token)
                done.append(work(_Statements(connection)))
            return done[0]

        try:
            return self.insist(once)
        except errors.IntegrityError as err:
            raise Conflict(str(err)) from err

    def close(self) -> None:
        """See Database."""
        self._drop()

    def insist(self, work: Callable[[psycopg.Connection[Row]], T]) -> T:
        """Do the work on a connection that stands; on a new one when it breaks, until patience ends."""
        until_s, wait_s = time.monotonic() + PATIENCE_S, FIRST_WAIT_S
        while True:
            try:
                return work(self._connected())
            except _AGAIN:
                continue
            except BROKEN as err:
                self._drop()
                if time.monotonic() > until_s:
                    raise StorageError(
                        f"the database of run {self._run} does not answer ({first_line(err)}); see that it runs, the "
                        f"same command then goes on where it stopped"
                    ) from err
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _connected(self) -> psycopg.Connection[Row]:
        if self._connection is None:
            self._connection = open_schema(self._url, self._run)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Statements:
    """SQL on one connection."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        """See Statements."""
        return self._connection.execute(_translated(query), _storable(parameters)).fetchall()

    def change(self, query: str, parameters: Parameters = ()) -> int:
        """See Statements."""
        return self._connection.execute(_translated(query), _storable(parameters)).rowcount

    def change_each(self, query: str, parameters: Iterable[Parameters]) -> None:
        """See Statements."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_translated(query), [_storable(row) for row in parameters])


def open_schema(url: str, run: str, *, make: bool = False) -> psycopg.Connection[Row]:
    """A connection that sees the tables of one run; ConfigError when there are none and none are to be made."""
    schema = schema_name(run)
    connection = connect(url)
    try:
        known = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
        if known is None and not make:
            raise ConfigError(f"the database has no run {run}; is it the right one?")
        with connection.transaction():
            # Two servers that begin at once would both make it.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (schema,))
            if known is None:
                connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
            connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
            _bring_up_to_date(connection, run)
    except errors.InsufficientPrivilege as err:
        connection.close()
        raise ConfigError(f"store.rounds: the database lets nobody make a schema there ({first_line(err)})") from err
    except BaseException:
        connection.close()
        raise
    return connection


def connect(url: str) -> psycopg.Connection[Row]:
    """A connection; ConfigError for an address, user or database that cannot be right."""
    try:
        connection: psycopg.Connection[Row] = psycopg.connect(url, **CONNECTION)  # type: ignore[arg-type]
        # A server that stops in the middle of an act would keep the others from the lease for as long as it stands.
        connection.execute(f"SET idle_in_transaction_session_timeout = {round(1000 * LEASE_S)}")
        return connection
    except psycopg.ProgrammingError as err:
        raise ConfigError(f"store.rounds is no address of a PostgreSQL database ({first_line(err)})") from err
    except psycopg.OperationalError as err:
        if not _is_refusal(err):
            raise
        raise ConfigError(f"store.rounds: the database refuses ({first_line(err)}); mend user or name") from err


def rename_schema(url: str, run: str, name: str) -> None:
    """Give the tables of a run the name of another one."""
    with connect(url) as connection:
        query = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
        connection.execute(query.format(sql.Identifier(schema_name(run)), sql.Identifier(schema_name(name))))


def schema_name(run: str) -> str:
    """The schema of a run; a long name ends in its hash."""
    name = f"fedwright {run}"
    if len(name.encode()) <= MOST_NAME_BYTES:
        return name
    return f"{name[:40]} {hashlib.sha256(run.encode()).hexdigest()[:16]}"


def first_line(err: Exception) -> str:
    """What an error of the database says, in short."""
    return str(err).strip().split("\n")[0]


def _bring_up_to_date(connection: psycopg.Connection[Row], run: str) -> None:
    """Make the tables of this release, or bring those of an earlier one up to date."""
    connection.execute("CREATE TABLE IF NOT EXISTS version (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER)")
    row = connection.execute("SELECT version FROM version").fetchone()
    version = 0 if row is None else row[0]
    if version > VERSION:
        raise RoundError(f"run {run} in the database was written by a later release of Fedwright; update this one")
    if version < VERSION:
        connection.execute(_POSTGRES_TABLES.encode())
        connection.execute(LEASE_TABLE)
        connection.execute("INSERT INTO version VALUES (1, %s)", (VERSION,))


def _is_refusal(err: psycopg.OperationalError) -> bool:
    """Whether the server answered and said no; such errors carry no code of their own while connecting."""
    return any(word in str(err) for word in ("does not exist", "authentication failed", "no password", "pg_hba"))


def _translated(query: str) -> bytes:
    return query.replace("?", "%s").encode()


def _storable(parameters: Parameters) -> list[Any]:
    """Text may hold any character but the one that the database has no place for."""
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in parameters]
