"""Ways to a device: which of two words is the later one, with any clock or none."""

from typing import Any

import pytest

from fedwright.protocol import codec
from fedwright.protocol.messages import Here
from fedwright.server_runtime.transport.edge_routes import EdgeRoutes

YEAR_S = 365 * 24 * 3600.0


def said(monkeypatch: pytest.MonkeyPatch, *, boot: Any = "b", at_s: Any = 0.0, **options: Any) -> Any:
    monkeypatch.setattr("time.time", lambda: at_s)
    return codec.decode(codec.encode(Here(), sender="pi", boot=boot, **options))


def test_a_board_whose_clock_starts_in_1970_may_come_back_by_another_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = EdgeRoutes()
    routes.arrive("pi", "one", said(monkeypatch, boot="first", at_s=56 * YEAR_S))

    assert not routes.is_stale("pi", "two", said(monkeypatch, boot="second", at_s=3.0))


@pytest.mark.parametrize(("sequence", "stale"), [(4, True), (5, False), (6, False)])
def test_what_a_device_counts_says_more_than_its_clock(
    monkeypatch: pytest.MonkeyPatch, sequence: Any, stale: Any
) -> None:
    routes = EdgeRoutes()
    routes.arrive("pi", "one", said(monkeypatch, at_s=50.0, order=codec.Order(sequence=5)))

    later = said(monkeypatch, at_s=YEAR_S if stale else 3.0, order=codec.Order(sequence=sequence))
    assert routes.is_stale("pi", "two", later) is stale


@pytest.mark.parametrize(("at_s", "stale"), [(49.0, True), (51.0, False)])
def test_a_device_of_an_earlier_release_has_only_its_clock(
    monkeypatch: pytest.MonkeyPatch, at_s: Any, stale: Any
) -> None:
    routes = EdgeRoutes()
    routes.arrive("pi", "one", said(monkeypatch, at_s=50.0))

    assert routes.is_stale("pi", "two", said(monkeypatch, at_s=at_s)) is stale
