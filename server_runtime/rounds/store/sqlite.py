"""The round store in SQLite: write-ahead log, every act one transaction that is synced to disk."""

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from fedwright.server_runtime.rounds.store.database import Conflict, Parameters, Row, Statements
from fedwright.server_runtime.rounds.store.migration import bring_up_to_date
from fedwright.server_runtime.rounds.store.sql import TABLES, SqlRoundStore
from fedwright.server_runtime.rounds.store.transaction import transaction

T = TypeVar("T")


class SqliteRoundStore(SqlRoundStore):
    """A RoundStore in one file; with `sync` False it outlives the process but not a power cut (simulation)."""

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        super().__init__(_SqliteFile(path, sync=sync))


class _SqliteFile:
    """A Database in one file."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'OFF'}")
            bring_up_to_date(self._connection, path, TABLES)
        except BaseException:
            self._connection.close()
            raise

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        """See Database."""
        return self._connection.execute(query, parameters).fetchall()

    def change(self, query: str, parameters: Parameters = ()) -> int:
        """See Statements."""
        return self._connection.execute(query, parameters).rowcount

    def change_each(self, query: str, parameters: Iterable[Parameters]) -> None:
        """See Statements."""
        self._connection.executemany(query, parameters)

    def act(self, work: Callable[[Statements], T]) -> T:
        """See Database."""
        try:
            with transaction(self._connection):
                return work(self)
        except sqlite3.IntegrityError as err:
            raise Conflict(str(err)) from err

    def close(self) -> None:
        """See Database."""
        self._connection.close()
