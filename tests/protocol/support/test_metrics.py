"""Figures are served as Prometheus wants them, whatever they are called and whoever asks."""

import socket
import urllib.request
from collections.abc import Iterator

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support import metrics
from fedwright.protocol.support.metrics import (
    About,
    Endpoint,
    Figure,
    Histogram,
    Metric,
    counter,
    gauge,
    parse_listen,
    served_metrics,
)
from helpers.scrape import fetch, samples
from helpers.tools import require_tool, run

ANY = "127.0.0.1:0"


def figures() -> Iterator[Figure]:
    yield About("fedwright_test_info", "Words.", {"run": "pets", "version": "1"})
    yield gauge("fedwright_test_bytes", "A gauge.", 3)
    yield counter("fedwright_test_total", "A counter.", 4)
    yield Metric("fedwright_test_ratio", "By device.", {"a": 0.5, 'b"\n\\{': 0.25}, "device")
    yield Histogram("fedwright_test_seconds", "Spread.", [0.5, 1.5, 9.0], (1.0, 2.0))


def endpoint(problem: str = "") -> Endpoint:
    return Endpoint(figures, lambda: problem)


def test_every_kind_of_figure_is_read_back() -> None:
    with served_metrics(ANY, endpoint()) as address:
        found = samples(fetch(f"{address}/metrics")[1])

    assert found["fedwright_test_info"] == {("pets", "1"): 1}
    assert found["fedwright_test_bytes"] == {(): 3}
    assert found["fedwright_test_total"] == {(): 4}
    assert found["fedwright_test_ratio"] == {("a",): 0.5, ('b"?\\{',): 0.25}
    assert found["fedwright_test_seconds_bucket"] == {("1.0",): 1, ("2.0",): 2, ("+Inf",): 3}
    assert found["fedwright_test_seconds_sum"] == {(): 11}
    assert "process_cpu_seconds_total" in found


def test_health_and_readiness_are_told_apart() -> None:
    with served_metrics(ANY, endpoint("the broker is not reached")) as address:
        assert fetch(f"{address}/healthz") == (200, "ok\n")
        assert fetch(f"{address}/readyz") == (503, "the broker is not reached\n")
        assert fetch(f"{address}/secret")[0] == 404
    with served_metrics(ANY, endpoint()) as address:
        assert fetch(f"{address}/readyz?verbose") == (200, "ok\n")


def test_only_a_reader_is_answered() -> None:
    with served_metrics(ANY, endpoint()) as address:
        request = urllib.request.Request(f"{address}/metrics", data=b"x" * 100, method="POST")
        with pytest.raises(urllib.request.HTTPError, match="501") as refused:
            urllib.request.urlopen(request, timeout=10)
        refused.value.close()
        head = urllib.request.Request(f"{address}/metrics", method="HEAD")
        with urllib.request.urlopen(head, timeout=10) as answer:
            assert answer.read() == b""


def test_series_are_bounded_whatever_devices_come() -> None:
    many = {f"device-{number}" + "x" * 500: 1.0 for number in range(metrics.MOST_SERIES + 8000)}
    crowd = Endpoint(lambda: [Metric("fedwright_test_up", "Up.", many, "device")], str)

    with served_metrics(ANY, crowd) as address:
        found = samples(fetch(f"{address}/metrics")[1])["fedwright_test_up"]

    assert len(found) == metrics.MOST_SERIES
    assert max(len(label) for (label,) in found) == metrics.MOST_LABEL


def test_those_who_say_nothing_keep_nobody_out() -> None:
    with served_metrics(ANY, endpoint()) as address:
        port = int(address.rpartition(":")[2])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(metrics.AT_ONCE - 1)]
        try:
            assert fetch(f"{address}/healthz")[0] == 200
        finally:
            for one in silent:
                one.close()


def test_nothing_is_served_without_a_place() -> None:
    with served_metrics("", endpoint()) as address:
        assert address == ""


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with (
        served_metrics(ANY, endpoint()) as address,
        pytest.raises(ConfigError, match=r"metrics cannot be served at 127\.0\.0\.1:\d+ .*name another port"),
        served_metrics(address.removeprefix("http://"), endpoint()),
    ):
        pass


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r'pip install "fedwright\[metrics\]"'), served_metrics(ANY, endpoint()):
        pass


@pytest.mark.parametrize(
    ("text", "place"),
    [("9100", ("127.0.0.1", 9100)), ("0.0.0.0:9100", ("0.0.0.0", 9100)), ("[::1]:9100", ("::1", 9100))],
)
def test_a_place_is_a_port_or_an_address(text: str, place: tuple[str, int]) -> None:
    assert parse_listen(text) == place


@pytest.mark.parametrize("text", ["x", "host:", "70000", "-1", "1.5", "٣"])
def test_what_is_no_place_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is no place to serve metrics"):
        parse_listen(text)


def test_names_follow_the_conventions_of_prometheus() -> None:
    promtool = require_tool("promtool")
    body, _ = endpoint().exposition("")

    said = run(["bash", "-c", f"{promtool} check metrics <<'END'\n{body.decode()}\nEND"])

    assert said == ""
