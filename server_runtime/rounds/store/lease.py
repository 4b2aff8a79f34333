"""Who may write into a run in PostgreSQL: one server at a time; another takes over when it falls silent."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

import psycopg

from fedwright.protocol.errors import FedwrightError, LeaseLost, StorageError
from fedwright.server_runtime.rounds.store.database import Row

log = logging.getLogger(__name__)

# How long a lease lasts that is not renewed, how often it is, and how often others look: together below ten seconds.
LEASE_S = 6.0
RENEW_S = 1.5
LOOK_S = 1.0
# A database that restarts is back before that.
PATIENCE_S = 60.0

LEASE_TABLE = """
CREATE TABLE lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), epoch BIGINT NOT NULL, holder TEXT NOT NULL,
    expires TIMESTAMPTZ NOT NULL, act BYTEA
);
INSERT INTO lease VALUES (1, 0, '', '-infinity', NULL);
"""
# The database's clock alone counts.
_LATER = "clock_timestamp() + make_interval(secs => %s)"


class Lease:
    """One server's right to write; each holder has an epoch of its own."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    @classmethod
    def take(cls, connection: psycopg.Connection[Row], holder: str) -> "Lease | None":
        """The lease, if nobody holds it now."""
        row = connection.execute(
            f"UPDATE lease SET epoch = epoch + 1, holder = %s, expires = {_LATER}"
            " WHERE expires < clock_timestamp() RETURNING epoch",
            (holder, LEASE_S),
        ).fetchone()
        return None if row is None else cls(row[0])

    def renew(self, connection: psycopg.Connection[Row], *, token: bytes | None = None) -> None:
        """Hold it on, and note the act that does so; LeaseLost when another server has it."""
        changed = connection.execute(
            f"UPDATE lease SET expires = {_LATER}, act = COALESCE(%s, act) WHERE epoch = %s",
            (LEASE_S, token, self.epoch),
        )
        if changed.rowcount != 1:
            raise LeaseLost(
                f"{holder_of(connection)} has taken this run over while this server was silent; it goes on there"
            )

    def last_act(self, connection: psycopg.Connection[Row]) -> bytes | None:
        """The token of the last act under this lease; LeaseLost when another server has it."""
        row = connection.execute("SELECT act FROM lease WHERE epoch = %s", (self.epoch,)).fetchone()
        if row is None:
            raise LeaseLost(f"{holder_of(connection)} has taken this run over; it goes on there")
        return None if row[0] is None else bytes(row[0])

    def give_up(self, connection: psycopg.Connection[Row]) -> None:
        """Let another server take it at once."""
        connection.execute("UPDATE lease SET expires = '-infinity' WHERE epoch = %s", (self.epoch,))


def holder_of(connection: psycopg.Connection[Row]) -> str:
    """Who has the lease, or had it last."""
    row = connection.execute("SELECT holder FROM lease").fetchone()
    return "nobody" if row is None else f"server {row[0]}"


def own_name() -> str:
    """What others are told of this server."""
    return f"{os.getpid()} on {socket.gethostname()}"


class LeaseKeeper:
    """Renews a lease from a thread of its own, over its own connection."""

    def __init__(self, lease: Lease, connect: Callable[[], psycopg.Connection[Row]]) -> None:
        self._lease, self._connect = lease, connect
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self._renewed_s = time.monotonic()
        self._lost: LeaseLost | None = None
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> "LeaseKeeper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Return while the lease is surely this server's; LeaseLost when it is another's.

        A server that was stopped for a while, or whose database was away, waits here until it knows.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._lost is not None or self._is_fresh(), timeout=PATIENCE_S):
                raise StorageError("the database of the run does not answer; see that it runs, then resume the run")
            if self._lost is not None:
                raise LeaseLost(str(self._lost))

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._renewed_s < LEASE_S

    def _renew(self) -> None:
        connection: psycopg.Connection[Row] | None = None
        while not self._ended.is_set() and self._lost is None:
            began_s = time.monotonic()
            try:
                connection = connection or self._connect()
                self._lease.renew(connection)
                self._note(began_s, None)
            except LeaseLost as err:
                self._note(began_s, err)
            except (psycopg.Error, FedwrightError) as err:
                log.info("the lease of the run could not be renewed (%s); trying again", str(err).split("\n")[0])
                if connection is not None:
                    connection.close()
                connection = None
            self._ended.wait(RENEW_S)
        if connection is not None:
            self._leave(connection)

    def _note(self, began_s: float, lost: LeaseLost | None) -> None:
        with self._changed:
            self._renewed_s, self._lost = began_s, lost
            self._changed.notify_all()

    def _leave(self, connection: psycopg.Connection[Row]) -> None:
        """Let the next server begin at once; where that cannot be said it begins when the lease has run out."""
        try:
            if self._lost is None:
                self._lease.give_up(connection)
        except psycopg.Error as err:
            log.info("the lease of the run could not be given back (%s)", str(err).split("\n")[0])
        finally:
            connection.close()
