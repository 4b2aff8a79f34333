"""Who is let in to the page, and who may act on it."""

from pathlib import Path

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.page.address import PageSettings
from fedwright.server_runtime.page.people import SESSION_S, People, allow, read_people
from fedwright.server_runtime.page.rates import Rates
from helpers.page_runs import visitor, write_run

WORD = "X-Fedwright-Word"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "pets", ["nano", "pi"]).parent


def test_on_this_machine_everybody_may_act(runs: Path) -> None:
    me = visitor(runs).get("/api/me").json()

    assert (me["name"], me["role"]) == ("local", "act")


def test_a_foreign_name_for_this_machine_is_refused(runs: Path) -> None:
    answer = visitor(runs, host="evil.example").get("/api/runs")

    assert answer.status_code == 400
    assert "localhost only" in answer.json()["error"]


def test_without_a_token_nothing_of_a_run_is_told(runs: Path, tmp_path: Path) -> None:
    allow(tmp_path / "people.toml", "ann", "act")
    client = visitor(runs, people=tmp_path / "people.toml", local=False)

    assert client.get("/").status_code == 200
    assert client.get("/api/me").json()["name"] is None
    assert client.get("/api/runs").status_code == 401
    assert client.get("/api/runs/pets/events").status_code == 401
    assert client.post("/login", json={"token": "guess"}).status_code == 401


def test_a_token_opens_a_session_that_outlives_the_page_and_not_its_person(runs: Path, tmp_path: Path) -> None:
    people = tmp_path / "people.toml"
    token = allow(people, "ann", "act")
    client = visitor(runs, people=people, local=False)
    answer = client.post("/login", json={"token": token})
    cookie = answer.headers["set-cookie"]
    again = visitor(runs, people=people, local=False)
    again.cookies = client.cookies

    assert answer.json() == {"name": "ann", "role": "act"}
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict"))
    assert token not in people.read_text()
    assert again.get("/api/runs").status_code == 200
    allow(people, "bob", "look")
    people.write_text(people.read_text().replace('["ann"]', '["eve"]'))
    assert again.get("/api/runs").status_code == 401


def test_a_session_ends_and_cannot_be_made_up(tmp_path: Path) -> None:
    now = [1000.0]
    allow(tmp_path / "people.toml", "ann", "look")
    people = People(tmp_path / "people.toml", clock=lambda: now[0])
    cookie = people.open_session(read_people(tmp_path / "people.toml")["ann"])
    name, until, sign = cookie.rsplit(".", 2)

    assert people.by_session(cookie) is not None
    assert people.by_session(f"{name}.{int(until) + 9}.{sign}") is None
    assert people.by_session("ann") is None
    now[0] += SESSION_S + 1
    assert people.by_session(cookie) is None


def test_a_program_needs_its_token_and_no_word(runs: Path, tmp_path: Path) -> None:
    token = allow(tmp_path / "people.toml", "ann", "look")
    client = visitor(runs, people=tmp_path / "people.toml", local=False)

    assert client.get("/api/runs", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert client.get("/api/runs", headers={"Authorization": "Bearer no"}).status_code == 401


def test_who_asks_too_often_has_to_wait() -> None:
    now = [0.0]
    rates = Rates(2.0, 3.0, clock=lambda: now[0])

    assert [rates.wait_s("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert rates.wait_s("b") == 0.0
    now[0] += 0.5
    assert rates.wait_s("a") == 0.0


def test_tokens_are_tried_a_few_times_only(runs: Path, tmp_path: Path) -> None:
    allow(tmp_path / "people.toml", "ann", "act")
    client = visitor(runs, people=tmp_path / "people.toml", local=False)

    codes = [client.post("/login", json={"token": "guess"}).status_code for _ in range(6)]

    assert codes == [401] * 5 + [429]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (PageSettings("0.0.0.0:8765"), "would be open to others at 0.0.0.0:8765"),
        (PageSettings("nonsense"), "must be HOST:PORT"),
        (PageSettings("127.0.0.1:99999"), "must be HOST:PORT"),
        (PageSettings(certificate=Path("a")), "belong together"),
        (PageSettings(client_ca=Path("a")), "needs --page-certificate"),
        (PageSettings(people=Path("missing")), "there is no file missing"),
    ],
    ids=["open to others", "no address", "no port", "no key", "issuer alone", "no file"],
)
def test_a_page_that_would_be_unsafe_does_not_start(settings: PageSettings, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings.check()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[ann]\nrole = "king"\ntoken_sha256 = "a"', "people.toml .ann. role"),
        ('[ann]\nrole = "act"', "nobody could be ann"),
        ('["../x"]\nrole = "act"', "must be 1 to 64"),
        ("ann = 3", "must be a table"),
    ],
    ids=["role", "no way in", "name", "no table"],
)
def test_a_wrong_file_of_people_is_said_to_be_so(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "people.toml").write_text(text)

    with pytest.raises(ConfigError, match=sentence):
        read_people(tmp_path / "people.toml")
