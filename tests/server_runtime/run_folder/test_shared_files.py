"""Servers of one run on several hosts, each with a folder of its own: the database has what the others wrote."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.audit import AUDIT, AuditLog, check_audit, read_audit
from fedwright.server_runtime.rounds.orders import IN_FORCE, InForce, Order, OrderBook, read_in_force
from fedwright.server_runtime.rounds.privacy.ledger import LEDGER, Entry, Ledger
from fedwright.server_runtime.rounds.store.base import RunRecord
from fedwright.server_runtime.run_folder.folder import RunFolder
from fedwright.server_runtime.run_folder.rounds import Claim, claim_rounds, order_in
from helpers.postgres import PostgresServer, running_postgres

RUN = RunRecord("run", "config", None, "identity", "served", 3)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


def host(tmp_path: Path, name: str) -> RunFolder:
    """The run's folder on one host."""
    path = tmp_path / name / tmp_path.name
    path.mkdir(parents=True, exist_ok=True)
    return RunFolder(path)


def write(folder: RunFolder, claim: Claim, *what: str) -> None:
    """Lines in the audit log, the last of them not flushed."""
    with closing(AuditLog(folder.path / AUDIT, keep=claim.keep)) as log:
        for word in what[:-1]:
            log.append(word)
        log.flush()
        log.append(what[-1])


def words(folder: RunFolder) -> list[str]:
    """What the log of a host says, whose chain holds."""
    assert check_audit(folder.path).problem == ""
    return [line["what"] for line in read_audit(folder.path)]


def test_the_next_server_goes_on_with_log_ledger_and_orders_of_the_last(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    one, two = host(tmp_path, "one"), host(tmp_path, "two")
    with claim_rounds(one, postgres.url, bucket=True) as claim:
        claim.store.save_run(RUN)
        write(one, claim, "a", "b", "never left this host")
        Ledger(one.path / LEDGER).append(Entry(1, noise_multiplier=2.0))
        (one.path / IN_FORCE).write_bytes(b'{"paused":true}')
        claim.keep()
    with claim_rounds(two, postgres.url, bucket=True) as claim:
        assert words(two) == ["a", "b", "never left this host"]
        write(two, claim, "c", "d")
        claim.keep()
    assert Ledger(two.path / LEDGER).entries == [Entry(1, noise_multiplier=2.0)]
    assert read_in_force(two.path) == InForce(paused=True)
    with claim_rounds(one, postgres.url, bucket=True):
        assert words(one) == ["a", "b", "never left this host", "c", "d"]


def test_lines_that_only_a_lost_server_had_give_way_to_those_of_the_next(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    one, two = host(tmp_path, "one"), host(tmp_path, "two")
    with claim_rounds(one, postgres.url, bucket=True) as claim:
        claim.store.save_run(RUN)
        write(one, claim, "a", "written when the host was lost")
    with claim_rounds(two, postgres.url, bucket=True) as claim:
        write(two, claim, "b", "c")
        claim.keep()

    with claim_rounds(one, postgres.url, bucket=True):
        assert words(one) == words(two) == ["a", "b", "c"]


def test_an_order_reaches_the_server_from_the_host_of_one_that_stands_by(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    one, two = host(tmp_path, "one"), host(tmp_path, "two")
    with claim_rounds(one, postgres.url, bucket=True) as claim:
        claim.store.save_run(RUN)
        with pytest.raises(ConfigError, match="is at work on run"), claim_rounds(two, postgres.url, bucket=True):
            pass
        order = Order("order-01", "rounds", rounds=9, by="eve")
        assert order_in(two.path, order)
        told: list[events.Event] = []
        times = iter(range(9))
        book = OrderBook(one.path, arrive=claim.arrive, clock=lambda: float(next(times)))

        for _ in range(3):
            book.take(told.append, lambda order, force: None, lambda: 1)

        assert [event.order for event in told if isinstance(event, events.Ordered)] == ["order-01"]
        assert book.force.rounds == 9
    with claim_rounds(two, postgres.url, bucket=True):
        assert read_in_force(two.path).rounds == 9


def test_blobs_in_a_folder_are_not_found_from_another(tmp_path: Path, postgres: PostgresServer) -> None:
    with claim_rounds(host(tmp_path, "one"), postgres.url) as claim:
        claim.store.save_run(RUN)

    with (
        pytest.raises(ConfigError, match=r"the same run\.folder or a bucket"),
        claim_rounds(host(tmp_path, "two"), postgres.url),
    ):
        pass
