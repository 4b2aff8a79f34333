"""Files of a run's folder that its next server needs, wherever that is: kept in the run's database as well.

The audit log and the ledger of privacy only grow and go there piece by piece; what is in force is replaced; an order
comes from wherever it was given. Only who has the lease writes, but for orders.
"""

import hashlib
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import psycopg

from fedwright.protocol.support.files import replace_file
from fedwright.server_runtime.rounds.audit import AUDIT
from fedwright.server_runtime.rounds.orders import GIVEN, IN_FORCE
from fedwright.server_runtime.rounds.privacy.ledger import LEDGER
from fedwright.server_runtime.rounds.store.database import Row
from fedwright.server_runtime.rounds.store.lease import Lease
from fedwright.server_runtime.rounds.store.postgres import PostgresSchema, open_schema

GROWING = (AUDIT, LEDGER)
TABLE = "CREATE TABLE IF NOT EXISTS files (name TEXT, start BIGINT, data BYTEA NOT NULL, PRIMARY KEY (name, start))"
ADD = "INSERT INTO files VALUES (%s, %s, %s) ON CONFLICT (name, start) DO UPDATE SET data = excluded.data"
ORDERS = f"{GIVEN}/%.json"


class SharedFiles:
    """The files of one folder, as the server sees them that has the lease."""

    def __init__(self, folder: Path, schema: PostgresSchema, lease: Lease) -> None:
        self._folder, self._schema, self._lease = folder, schema, lease
        self._lock = threading.Lock()
        self._ends: dict[str, int] = {}
        self._force = b""
        self._write(lambda connection: connection.execute(TABLE))
        for name in GROWING:
            self._ends[name] = self._catch_up(name)
        kept = self._rows("SELECT data FROM files WHERE name = %s", IN_FORCE)
        if kept:
            self._force = bytes(kept[0][0])
            replace_file(folder / IN_FORCE, self._force)
        self.keep()

    def keep(self) -> None:
        """Put into the database what the files have that it has not; LeaseLost when the run is another server's."""
        with self._lock:
            added = [piece for name in GROWING if (piece := self._piece(name)) is not None]
            force = _read(self._folder / IN_FORCE)
            rows: list[tuple[str, int, bytes]] = [*added, *([(IN_FORCE, 0, force)] if force != self._force else [])]
            if not rows:
                return
            self._write(lambda connection: [connection.execute(ADD, row) for row in rows])
            self._ends |= {name: start + len(data) for name, start, data in added}
            self._force = force

    def arrive(self, known: Collection[str]) -> None:
        """Put orders that were given elsewhere into the folder; those that are known, and kept, have had their time."""
        self.keep()
        done = []
        for name, data in self._rows("SELECT name, data FROM files WHERE name LIKE %s", ORDERS):
            if Path(name).stem in known:
                done.append(name)
            else:
                (self._folder / GIVEN).mkdir(exist_ok=True)
                replace_file(self._folder / GIVEN / Path(name).name, bytes(data))
        if done:
            self._write(lambda connection: connection.execute("DELETE FROM files WHERE name = ANY(%s)", (done,)))

    def _piece(self, name: str) -> tuple[str, int, bytes] | None:
        """The whole lines behind what is kept."""
        path, start = self._folder / name, self._ends[name]
        if not path.exists() or path.stat().st_size <= start:
            return None
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        return (name, start, whole) if whole else None

    def _catch_up(self, name: str) -> int:
        """Bring a file that grows to what is kept, from where it is another; returns where that ends."""
        path, end = self._folder / name, 0
        query = "SELECT start, length(data), encode(sha256(data), 'hex') FROM files WHERE name = %s ORDER BY start"
        for start, length, digest in self._rows(query, name):
            if _digest(path, start, length) != digest:
                (row,) = self._rows("SELECT data FROM files WHERE name = %s AND start = %s", name, start)
                with path.open("r+b" if path.exists() else "w+b") as file:
                    file.truncate(start)
                    file.seek(start)
                    file.write(bytes(row[0]))
            end = start + length
        return end

    def _rows(self, query: str, *parameters: Any) -> list[Row]:
        return self._schema.insist(lambda connection: connection.execute(query.encode(), parameters).fetchall())

    def _write(self, work: Callable[[psycopg.Connection[Row]], object]) -> None:
        """In one act, which may happen twice: it ends the same."""

        def once(connection: psycopg.Connection[Row]) -> None:
            with connection.transaction():
                self._lease.renew(connection)
                work(connection)

        self._schema.insist(once)


def share_order(url: str, run: str, order: str, data: bytes) -> None:
    """Let the server of a run have an order, wherever it is."""
    with open_schema(url, run) as connection:
        connection.execute(TABLE)
        connection.execute(ADD, (f"{GIVEN}/{order}.json", 0, data))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _digest(path: Path, start: int, length: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(length)).hexdigest()
