"""What the page answers about runs: everything that people need, and nothing of the machine."""

from pathlib import Path

import pytest

from fedwright.server_runtime.page.runs import without_paths
from helpers.page_runs import HOSTILE, PATH, visitor, write_run

DEVICES = [HOSTILE, "nano", "pi"]
ADDRESSES = [
    "/api/runs",
    "/api/runs/pets",
    "/api/runs/pets/fleet",
    "/api/runs/pets/rounds/1",
    "/api/runs/pets/devices/nano",
]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_run(tmp_path / "pets", DEVICES).parent


def test_a_run_has_its_curves_costs_and_news(runs: Path) -> None:
    found = visitor(runs).get("/api/runs/pets").json()

    assert found["state"] == "killed"
    assert [one["round"] for one in found["figures"]] == [1, 2]
    assert found["figures"][1]["accuracy_mean"] == 0.7
    assert found["costs"][0]["step_s"] == 0.1
    assert found["costs"][0]["expected_step_s"] == 0.09
    assert found["news"][-1]["what"] == "round closed"


def test_fleet_round_and_device_tell_of_each_device(runs: Path) -> None:
    client = visitor(runs)

    fleet = client.get("/api/runs/pets/fleet").json()
    stage = client.get("/api/runs/pets/rounds/2").json()
    device = client.get("/api/runs/pets/devices/nano").json()

    assert [row["device"] for row in fleet] == sorted(DEVICES)
    assert [task["outcome"] for task in stage["tasks"]] == ["refused", "accepted", "accepted"]
    assert stage["tasks"][1]["spans"]["train"] == 1.5
    assert [task["round"] for task in device["tasks"]] == [1, 2]
    assert device["offer"]["macs"] == 1000
    assert device["lines"][0]["what"] == "accepted"


@pytest.mark.parametrize(
    "address", ["/api/runs/no", "/api/runs/..%2f..", "/api/runs/pets/rounds/9", "/api/runs/pets/devices/no", "/no"]
)
def test_what_is_not_there_is_said_to_be_so(runs: Path, address: str) -> None:
    answer = visitor(runs).get(address)

    assert answer.status_code == 404
    assert "there is no such" in answer.json()["error"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_path_of_the_machine_is_shown(runs: Path, address: str) -> None:
    told = visitor(runs).get(address).text

    assert str(runs) not in told
    assert PATH not in told
    assert "secret" not in told
    assert "machine" not in told.replace('"machine":"aarch64"', "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no /home/ann/data.npz here", "no …/data.npz here"),
        ("~/runs/pets: full", "…/pets: full"),
        ("3/4 of https://host/a/b", "3/4 of https://host/a/b"),
        ("a <script>x</script>", "a <script>x</script>"),
        ("(/var/lib/x)", "(…/x)"),
    ],
)
def test_of_a_path_only_its_end_is_shown(text: str, expected: str) -> None:
    assert without_paths(text) == expected


def test_a_browser_gets_files_of_ours_only(runs: Path) -> None:
    client = visitor(runs)

    page, script, out = client.get("/"), client.get("/static/main.js"), client.get("/static/../app.py")

    assert (page.status_code, script.status_code, out.status_code) == (200, 200, 404)
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "<script>" not in page.text
    assert " onclick" not in page.text


def test_a_log_that_grows_is_seen_and_another_run_too(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwright.server_runtime.page.runs.LOOK_S", 0.0)
    client = visitor(runs)
    before = client.get("/api/runs/pets").json()["version"]
    write_run(runs / "pets", DEVICES, rounds=3)
    write_run(runs / "birds", ["a", "b"])

    assert client.get("/api/runs/pets").json()["version"] > before
    assert {run["name"] for run in client.get("/api/runs").json()} == {"pets", "birds"}
