"""The transport benchmark measures what it says, on small numbers."""

import time
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

from fedwright.benchmarks.suites import transport
from fedwright.protocol.errors import LinkError
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.rounds.task_tracker import TaskTracker

pytestmark = pytest.mark.broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def test_a_transfer_is_compared_with_a_raw_relay(broker: Broker) -> None:
    table = transport.measure_transfer(broker, 1_000_000, repeats=1)

    assert table["size_mb"] == 1.0
    assert table["ratio"] == pytest.approx(table["pulled_mb_per_s"] / table["raw_mb_per_s"], rel=0.05)
    assert table["pulled_mb_per_s"] > 0


def test_every_device_is_pulled_from_and_heard(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_S", 0.1)
    monkeypatch.setattr(transport, "LINKS_PER_PROCESS", 3)
    before = set(psutil.Process().children(recursive=True))
    started_s = time.monotonic()

    uploads = transport.measure_uploads(broker, 4, 300_000)
    crowd = transport.measure_crowd(broker, 4)

    assert (uploads["devices"], crowd["devices"]) == (4, 4)
    took_s = time.monotonic() - started_s
    assert 0 < uploads["wall_s"] < took_s
    assert 0 < crowd["reports_s"] < took_s
    assert set(psutil.Process().children(recursive=True)) <= before


def test_models_of_many_devices_cost_server_and_broker_in_proportion(broker: Broker) -> None:
    rows = [transport.measure_models(broker, count) for count in (2, 6)]

    assert [row["devices"] for row in rows] == [2, 6]
    assert all(row["server_cpu_s"] > 0 for row in rows)
    grown = [{"devices": n, "server_cpu_s": n**2 / 100, "broker_cpu_s": n / 100} for n in (10, 100)]
    assert [(round(one["value"], 3), one["holds"]) for one in transport._growth_checks(grown)] == [
        (2, False),
        (1, True),
    ]


def test_many_devices_are_heard_and_waited_for_by_the_servers_own_desk(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "IDLE_S", 0.1)
    present, poll = [], TaskTracker.poll

    def watched(tracker: TaskTracker, deadline_s: float) -> None:
        poll(tracker, deadline_s)
        present.append(len(tracker.present()))

    monkeypatch.setattr(TaskTracker, "poll", watched)
    transport.measure_crowd(broker, 3)

    # Once when the last report came, and at least once more while nobody said anything.
    assert present.count(3) >= 2


def test_a_device_that_never_reports_ends_the_benchmark_in_one_sentence(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "WAIT_S", 0.2)
    with (
        closing(connect(broker.url, client_id="server")) as link,
        pytest.raises(LinkError, match=r"only 0 of 2 devices reported in 0\.2 s"),
    ):
        transport.time_crowd(link, 2)


def test_a_broker_that_dies_ends_the_benchmark_in_one_sentence(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broker.kill()

    with pytest.raises(LinkError, match="did not start"):
        transport.measure_uploads(broker, 1, 1000)
    assert "connection refused" in capfd.readouterr().err
