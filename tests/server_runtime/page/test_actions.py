"""What people do on the page: only those who may, only from the page itself, and once."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.server_runtime.page.people import allow
from fedwright.server_runtime.rounds.orders import waiting_orders
from helpers.page_runs import visitor, write_run

PAUSE = {"id": "order-0001", "kind": "pause"}
ORDERS = "/api/runs/pets/orders"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "pets", ["nano", "pi"]).parent


def word(client: Any) -> dict[str, str]:
    return {"X-Fedwright-Word": client.get("/api/me").json()["word"]}


def test_an_order_is_durable_when_it_is_answered_and_counts_once(runs: Path) -> None:
    client = visitor(runs)

    first = client.post(ORDERS, json=PAUSE, headers=word(client)).json()
    second = client.post(ORDERS, json=PAUSE, headers=word(client)).json()

    assert (first["fresh"], second["fresh"]) == (True, False)
    assert [(order.kind, order.by) for order in waiting_orders(runs / "pets")] == [("pause", "local")]


@pytest.mark.parametrize(
    "headers",
    [{}, {"X-Fedwright-Word": "guess"}, {"Origin": "https://evil.example"}],
    ids=["no word", "wrong word", "foreign page"],
)
def test_a_page_of_somebody_else_orders_nothing(runs: Path, headers: dict[str, str]) -> None:
    client = visitor(runs)
    known = word(client) if "Origin" in headers else {}

    answer = client.post(ORDERS, json=PAUSE, headers={**known, **headers})

    assert answer.status_code == 403
    assert not waiting_orders(runs / "pets")


def test_who_may_look_may_not_act(runs: Path, tmp_path: Path) -> None:
    people = tmp_path / "people.toml"
    tokens = {role: allow(people, f"the-{role}er", role) for role in ("look", "act")}
    client = visitor(runs, people=people, local=False)

    codes = {
        role: client.post(ORDERS, json=PAUSE, headers={"Authorization": f"Bearer {token}"}).status_code
        for role, token in tokens.items()
    }

    assert codes == {"look": 403, "act": 200}
    assert [order.by for order in waiting_orders(runs / "pets")] == ["the-acter"]


@pytest.mark.parametrize(
    ("data", "code", "sentence"),
    [
        ({"id": "order-0001", "kind": "explode"}, 400, "this is no order"),
        ({"id": "x", "kind": "pause"}, 400, "this is no order"),
        ({"id": "order-0001", "kind": "take-out", "device": "stranger"}, 404, "no such device"),
        ({"id": "order-0001", "kind": "rounds", "rounds": 1}, 400, "2 rounds were done already"),
        ({"kind": "x" * 5000}, 400, "this is no order"),
    ],
    ids=["kind", "id", "device", "rounds", "too long"],
)
def test_what_is_no_order_is_refused(runs: Path, data: dict[str, Any], code: int, sentence: str) -> None:
    client = visitor(runs)

    answer = client.post(ORDERS, json=data, headers=word(client))

    assert answer.status_code == code
    assert sentence in answer.json()["error"]


def test_orders_come_a_few_at_a_time(runs: Path) -> None:
    client = visitor(runs)
    known = word(client)

    codes = [
        client.post(ORDERS, json={"id": f"order-{number:04}", "kind": "pause"}, headers=known).status_code
        for number in range(30)
    ]

    assert codes[0] == 200
    assert codes[-1] == 429


def test_an_export_that_cannot_be_made_says_why_without_a_path(runs: Path) -> None:
    client = visitor(runs)

    answer = client.post("/api/runs/pets/export", json={"device": "pi"}, headers=word(client))

    assert answer.status_code == 409
    assert "holds no run" in answer.json()["error"]
    assert str(runs) not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "order-0002", "kind": "take-out", "device": ["nano"]}',
        b'{"id": "order-0002", "kind": "rounds", "rounds": 1e400}',
        b'{"id": "order-0002", "kind": "\\ud800"}',
        b'{"\\ud800": 1, "id": "order-0002", "kind": "pause"}',
        b"[" * 4000,
    ],
    ids=["list", "no number", "half a letter", "half a letter as a key", "nest"],
)
def test_what_is_no_order_is_refused_in_a_sentence(runs: Path, body: bytes) -> None:
    client = visitor(runs)

    answer = client.post(ORDERS, content=body, headers={**word(client), "Content-Type": "application/json"})

    assert answer.status_code == 400
    assert answer.json()["error"].startswith("this is no order")
    assert not waiting_orders(runs / "pets")


@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_an_address_that_is_none_is_turned_away(runs: Path, name: str) -> None:
    client = visitor(runs)

    answer = client.post(ORDERS, json=PAUSE, headers={**word(client), name: "http://[" if name == "Origin" else "["})

    assert answer.status_code in (400, 403)
