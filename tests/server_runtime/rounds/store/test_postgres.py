"""PostgreSQL under the rounds: broken connections, conflicts, one server at a time, and addresses that are wrong."""

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fedwright.protocol.errors import ConfigError, LeaseLost, RoundError
from fedwright.server_runtime.rounds.store import lease as leases
from fedwright.server_runtime.rounds.store import postgres
from fedwright.server_runtime.rounds.store.base import Position, Reply, RunRecord
from fedwright.server_runtime.rounds.store.lease import Lease, LeaseKeeper
from fedwright.server_runtime.rounds.store.postgres import (
    PostgresRoundStore,
    PostgresSchema,
    open_schema,
    schema_name,
)
from fedwright.server_runtime.run_folder.folder import RunFolder
from fedwright.server_runtime.run_folder.rounds import claim_rounds, open_rounds, set_aside
from helpers.postgres import PostgresServer, running_postgres
from helpers.present import present

RECORD = RunRecord("night", "[run]\n", None, identity="abc")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgres() as running:
        yield running


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """A run of this test alone."""
    return hashlib.sha256(request.node.name.encode()).hexdigest()[:16]


def held(server: PostgresServer, run: str) -> Lease:
    """The lease of a run that nobody else has."""
    with open_schema(server.url, run, make=True) as connection:
        lease = Lease.take(connection, "test")
    assert lease is not None
    return lease


@pytest.mark.parametrize("moment", range(6))
def test_an_act_happens_once_although_its_connection_breaks(server: PostgresServer, run: str, moment: int) -> None:
    """The connection is cut at each statement of an act in turn: BEGIN, lease, three of the work, COMMIT."""
    schema = PostgresSchema(server.url, run, lease=held(server, run))
    schema.act(lambda db: db.change("CREATE TABLE tally (number BIGINT)"))
    cut_before_statement(schema, moment, server.sever)

    def work(db: Any) -> int:
        for number in range(3):
            db.change("INSERT INTO tally VALUES (?)", (number,))
        return 7

    assert schema.act(work) == 7
    assert schema.rows("SELECT number FROM tally ORDER BY number") == [(0,), (1,), (2,)]
    schema.close()


def test_a_commit_whose_answer_is_lost_is_not_done_twice(server: PostgresServer, run: str) -> None:
    schema = PostgresSchema(server.url, run, lease=held(server, run))
    schema.act(lambda db: db.change("CREATE TABLE tally (number BIGINT)"))
    connection, calls = present(schema._connection), []

    class Deaf:
        """A transaction that is committed, after which the connection is gone."""

        def __enter__(self) -> None:
            connection.execute("BEGIN")

        def __exit__(self, *_: object) -> None:
            connection.execute("COMMIT")
            connection.close()
            raise psycopg.OperationalError("the connection was lost")

    connection.transaction = Deaf  # type: ignore[method-assign,assignment]

    def work(db: Any) -> None:
        calls.append(1)
        db.change("INSERT INTO tally VALUES (1)")

    schema.act(work)

    assert (len(calls), schema.rows("SELECT number FROM tally")) == (1, [(1,)])
    schema.close()


def test_a_database_that_is_killed_and_comes_back_is_waited_for() -> None:
    with running_postgres() as server:
        store = PostgresRoundStore(server.url, "night", lease=held(server, "night"))
        store.save_run(RECORD)
        server.kill()
        again = threading.Timer(0.3, server.start)
        again.start()
        store.save_plan(Position(1, 0), [])
        again.join()

        assert store.plan(Position(1, 0)) == []
        assert store.run() == RECORD
        store.close()


def test_acts_that_collide_are_done_again(server: PostgresServer, run: str) -> None:
    schema = PostgresSchema(server.url, run, lease=held(server, run))
    schema.act(lambda db: db.change("CREATE TABLE tally (number BIGINT)"))
    tries = []

    def work(db: Any) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise psycopg.errors.SerializationFailure("could not serialize access")
        db.change("INSERT INTO tally VALUES (1)")
        return 1

    assert schema.act(work) == 1
    assert (len(tries), schema.rows("SELECT COUNT(*) FROM tally")) == (3, [(1,)])
    schema.close()


def test_text_that_the_database_has_no_place_for_is_kept_as_far_as_it_goes(server: PostgresServer, run: str) -> None:
    store = PostgresRoundStore(server.url, run, lease=held(server, run))
    assert store.save_reply(Reply("t1", "refused", detail="so\0long"))

    assert present(store.reply("t1")).detail == "so\ufffdlong"
    store.close()


def test_who_has_lost_the_lease_writes_nothing_more(server: PostgresServer, run: str) -> None:
    first = PostgresRoundStore(server.url, run, lease=held(server, run))
    first.save_run(RECORD)
    with open_schema(server.url, run) as connection:
        assert Lease.take(connection, "second") is None
        connection.execute("UPDATE lease SET expires = clock_timestamp() - interval '1 s'")
        assert Lease.take(connection, "second") is not None

    with pytest.raises(LeaseLost, match="server second has taken this run over"):
        first.save_plan(Position(1, 0), [])
    assert first.plan(Position(1, 0)) is None
    first.close()


def test_a_server_that_stops_in_the_middle_of_an_act_holds_nobody_up(
    server: PostgresServer, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LEASE_S", 0.4)
    monkeypatch.setattr(leases, "LEASE_S", 0.4)
    schema = PostgresSchema(server.url, run, lease=held(server, run))
    schema.act(lambda db: db.change("CREATE TABLE tally (number BIGINT)"))
    taken: list[Lease | None] = []

    def stop(db: Any) -> None:
        db.change("INSERT INTO tally VALUES (1)")
        if not taken:
            with open_schema(server.url, run) as other:
                other.execute("SET statement_timeout = '20s'")
                while not taken or taken[-1] is None:
                    taken.append(Lease.take(other, "another"))
        db.change("INSERT INTO tally VALUES (2)")

    with pytest.raises(LeaseLost, match="server another"):
        schema.act(stop)
    assert present(taken[-1]).epoch == 2
    assert schema.rows("SELECT number FROM tally") == []
    schema.close()


def test_a_keeper_says_when_the_lease_is_gone(
    server: PostgresServer, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_S", 0.02)
    with LeaseKeeper(held(server, run), lambda: open_schema(server.url, run)) as keeper:
        keeper.check()
        with open_schema(server.url, run) as connection:
            connection.execute("UPDATE lease SET epoch = epoch + 1, holder = 'second'")

        with pytest.raises(LeaseLost, match="server second"):
            _until_raised(keeper.check)


def test_a_second_server_waits_for_the_first_and_goes_on_with_its_run(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOOK_S", 0.02)
    folder, told = RunFolder(tmp_path / "shared"), threading.Event()
    folder.path.mkdir()
    with claim_rounds(folder, server.url) as first:
        first.store.save_run(RECORD)
        with pytest.raises(ConfigError, match="is at work on run shared; stop it first"), claim_rounds(folder, None):
            pass
        found: list[RunRecord | None] = []
        second = threading.Thread(target=_take_over, args=(folder, server.url, told, found))
        second.start()
        assert told.wait(30)
        assert found == []
    second.join()

    assert found == [RECORD]


def test_a_server_that_stands_by_outlives_a_database_that_restarts(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOOK_S", 0.02)
    folder, told = RunFolder(tmp_path / "outlived"), threading.Event()
    folder.path.mkdir()
    with open_schema(server.url, folder.path.name, make=True) as connection:
        assert Lease.take(connection, "first") is not None
        connection.execute("UPDATE lease SET expires = 'infinity'")
    found: list[RunRecord | None] = []
    second = threading.Thread(target=_take_over, args=(folder, server.url, told, found))
    second.start()
    assert told.wait(30)
    server.sever()
    server.stop()
    server.start()
    with open_schema(server.url, folder.path.name) as connection:
        connection.execute("UPDATE lease SET expires = '-infinity'")
    second.join(60)

    assert found == [None]


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout], ids=["late", "stopped"]
)
def test_a_server_that_takes_over_outlives_connections_that_fail_on_a_busy_machine(
    error: type[psycopg.Error], server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOOK_S", 0.02)
    monkeypatch.setattr(postgres, "FIRST_WAIT_S", 0.01)
    folder, calls, before = RunFolder(tmp_path / error.__name__.lower()), itertools.count(), postgres._bring_up_to_date
    folder.path.mkdir()
    with open_schema(server.url, folder.path.name, make=True) as connection:
        assert Lease.take(connection, "first") is not None

    def brought(connection: psycopg.Connection[Any], run: str) -> None:
        # The first look finds the lease taken; of those that follow every other one fails.
        if next(calls) % 2:
            raise error("the machine is busy")
        before(connection, run)

    def told(holder: str) -> None:
        with psycopg.connect(server.url, autocommit=True) as other:
            other.execute(f"UPDATE \"{schema_name(folder.path.name)}\".lease SET expires = '-infinity'")

    monkeypatch.setattr(postgres, "_bring_up_to_date", brought)
    with claim_rounds(folder, server.url, waiting=told) as claim:
        claim.store.save_run(RECORD)
        assert claim.store.run() == RECORD
    assert next(calls) > 4


def test_a_run_can_be_looked_at_while_a_server_is_at_work(server: PostgresServer, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "watched")
    folder.path.mkdir()
    with claim_rounds(folder, server.url) as claim:
        claim.store.save_run(RECORD)
        looked = open_rounds(folder)

        assert looked.run() == RECORD
        with pytest.raises(RoundError, match="was opened to be read"):
            looked.save_plan(Position(1, 0), [])
        looked.close()


def test_a_run_that_is_set_aside_leaves_its_name_free(server: PostgresServer, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "again")
    folder.path.mkdir()
    with claim_rounds(folder, server.url) as claim:
        claim.store.save_run(RECORD)

    assert set_aside(folder, server.url) == tmp_path / "again.1"
    folder.path.mkdir()
    with claim_rounds(folder, server.url) as claim:
        assert claim.store.run() is None
    kept = open_rounds(RunFolder(tmp_path / "again.1"))
    assert kept.run() == RECORD
    kept.close()


def test_a_run_whose_folder_is_elsewhere_is_not_mixed_up(server: PostgresServer, tmp_path: Path) -> None:
    for parent in ("here", "there"):
        (tmp_path / parent / "common").mkdir(parents=True)
    with claim_rounds(RunFolder(tmp_path / "here" / "common"), server.url) as claim:
        claim.store.save_run(RECORD)

    other = RunFolder(tmp_path / "there" / "common")
    with pytest.raises(ConfigError, match="give all servers of a run the same"):
        claim_rounds(other, server.url).__enter__()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda url: url.replace("/postgres", "/nosuch"), "the database refuses"),
        (lambda url: url.rpartition(":")[0] + ":1/postgres", "no database answers there"),
        (lambda url: url + "?nonsense=1", "no address of a PostgreSQL database"),
    ],
    ids=["no such database", "nothing listens", "unknown option"],
)
def test_a_wrong_address_is_one_sentence(
    server: PostgresServer, tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        claim_rounds(RunFolder(tmp_path), change(server.url)).__enter__()
    assert "\n" not in str(raised.value)


def test_a_database_without_rights_is_one_sentence(server: PostgresServer, tmp_path: Path) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE USER nobody")
    with pytest.raises(ConfigError, match="lets nobody make a schema"):
        claim_rounds(RunFolder(tmp_path), server.url.replace("postgres@", "nobody@")).__enter__()


def test_tables_of_a_later_release_are_not_touched(server: PostgresServer, run: str) -> None:
    with open_schema(server.url, run, make=True) as connection:
        connection.execute("UPDATE version SET version = 99")
    with pytest.raises(RoundError, match="later release"):
        open_schema(server.url, run)


def test_long_names_of_runs_stay_apart() -> None:
    first, second = schema_name("night" * 20), schema_name("night" * 20 + "2")

    assert first != second
    assert max(len(first), len(second)) <= 63


def _take_over(folder: RunFolder, url: str, told: threading.Event, found: list[RunRecord | None]) -> None:
    with claim_rounds(folder, url, waiting=lambda holder: told.set()) as claim:
        found.append(claim.store.run())


def _until_raised(check: Callable[[], None]) -> None:
    for _ in range(1000):
        check()
        threading.Event().wait(0.02)


def cut_before_statement(schema: PostgresSchema, moment: int, cut: Callable[[], None]) -> None:
    """Break all connections before the statement of this number, counted from now."""
    connection = present(schema._connection)
    count = itertools.count()
    send = type(connection).wait

    def wait(self: Any, *args: Any, **options: Any) -> Any:
        if next(count) == moment:
            cut()
        return send(self, *args, **options)

    connection.wait = wait.__get__(connection)  # type: ignore[method-assign]
