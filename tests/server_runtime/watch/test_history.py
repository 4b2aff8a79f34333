"""The history of a run: read from its audit log, whole after a kill, cut by a rollback."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.messages import Status
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.audit import AUDIT, AuditLog, facts_of
from fedwright.server_runtime.watch.history import HistoryReader, read_history, runs_below
from fedwright.server_runtime.watch.live import LIVE, Live, is_served, read_live
from fedwright.simulation.simulate import simulate
from helpers.resume import Killed
from helpers.simulation import make_config


def write(folder: Path, *lines: tuple[str, dict[str, Any]]) -> None:
    log = AuditLog(folder / AUDIT)
    for what, facts in lines:
        log.append(what, **facts)
    log.close()


BEGAN = ("began", {"about": {"run": "pets", "method": "fedavg", "rounds": 3}})
SENT = ("sent", {"round": 1, "to": {"pi": ["t1", "b1"], "nano": ["t2", "b2"]}, "offers": {"pi": {"width": 0.5}}})


def accepted(device: str, right: int, number: int = 1) -> tuple[str, dict[str, Any]]:
    stats = {"holdout": 10, "correct_before": right, "peak_rss_bytes": 100 * right}
    return "accepted", {"round": number, "device": device, "stats": stats}


def test_a_history_has_what_devices_were_sent_and_how_they_fared(tmp_path: Path) -> None:
    refused = ("refused", {"round": 1, "device": "nano", "detail": "nano refused: too hot"})
    closed = ("round closed", {"round": 1, "metrics": {"loss": 0.5}, "seconds": 2.0})
    write(tmp_path, BEGAN, SENT, accepted("pi", 7), refused, closed)

    history = read_history(tmp_path)

    assert (history.name, history.state, history.rounds_done) == ("pets", "running", 1)
    assert history.devices["nano"].state == "refused"
    assert history.devices["nano"].detail == "nano refused: too hot"
    assert history.devices["pi"].offer == {"width": 0.5}
    assert history.rounds[1].figures() == {
        "loss": 0.5,
        "seconds": 2.0,
        "accuracy_mean": 0.7,
        "accuracy_worst": 0.7,
        "accuracy_tenth": 0.7,
        "peak_rss_bytes": 700.0,
    }


def test_worst_and_tenth_percentile_are_of_the_devices(tmp_path: Path) -> None:
    everybody = {f"d{number}": ["t", "b"] for number in range(1, 11)}
    lines = [accepted(f"d{number}", number) for number in range(1, 11)]
    write(tmp_path, ("sent", {"round": 1, "to": everybody}), *lines)

    figures = read_history(tmp_path).rounds[1].figures()

    assert figures["accuracy_mean"] == pytest.approx(0.55)
    assert (figures["accuracy_worst"], figures["accuracy_tenth"]) == (0.1, 0.1)


def test_a_reader_goes_on_where_it_stopped_and_waits_for_whole_lines(tmp_path: Path) -> None:
    write(tmp_path, BEGAN)
    reader = HistoryReader(tmp_path)
    assert reader.look()
    assert not reader.look()

    with (tmp_path / AUDIT).open("ab") as file:
        file.write(b'{"what": "joined", "dev')
    assert not reader.look()
    with (tmp_path / AUDIT).open("ab") as file:
        file.write(b'ice": "pi", "time": 5}\n')

    assert reader.look()
    assert reader.history.devices["pi"].state == "idle"


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b'{"what": "sent", "round": "x"}\n', b'{"what": 5}\n'])
def test_a_damaged_line_does_no_harm(tmp_path: Path, line: bytes) -> None:
    (tmp_path / AUDIT).write_bytes(line + json.dumps({"what": "joined", "device": "pi", "time": 1}).encode() + b"\n")

    assert list(read_history(tmp_path).devices) == ["pi"]


def test_another_run_in_the_folder_begins_another_history(tmp_path: Path) -> None:
    write(tmp_path, BEGAN, SENT)
    reader = HistoryReader(tmp_path)
    reader.look()
    (tmp_path / AUDIT).unlink()
    write(tmp_path, BEGAN)

    assert reader.look()
    assert not reader.history.rounds


def test_rounds_that_were_taken_back_are_gone(tmp_path: Path) -> None:
    closed: list[tuple[str, dict[str, Any]]] = [
        ("round closed", {"round": number, "metrics": {}}) for number in (1, 2, 3)
    ]
    write(tmp_path, *closed, ("rolled back", {"to": 1}))

    assert read_history(tmp_path).rounds_done == 1


def test_runs_are_found_in_a_folder_of_runs_and_by_themselves(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, BEGAN)

    assert [path.name for path in runs_below(tmp_path)] == ["a", "b"]
    assert list(runs_below(tmp_path / "a")) == [tmp_path / "a"]


def test_the_history_of_a_killed_and_resumed_run_is_that_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, rounds=3)
    # Dies after the update is durable and before anybody hears of it.
    whole = facts_of

    def die(event: events.Event) -> Any:
        if isinstance(event, events.UpdateTaken) and event.round == 2:
            raise Killed
        return whole(event)

    with monkeypatch.context() as patched:
        patched.setattr("fedwright.server_runtime.rounds.audit.facts_of", die)
        with pytest.raises(Killed):
            simulate(*config)
    simulate(*config)

    (folder,) = runs_below(tmp_path)
    history = read_history(folder)
    assert (history.state, history.rounds_done, len(history.lives)) == ("complete", 3, 2)
    for stage in history.rounds.values():
        assert stage.closed_s is not None
        assert {task.outcome for task in stage.tasks.values()} == {"accepted"}
        assert all(task.stats["steps"] for task in stage.tasks.values())


def test_live_says_what_devices_are_at_and_forgets_who_answered(tmp_path: Path) -> None:
    now = [0.0]
    live = Live(tmp_path, events.ignore, clock=lambda: now[0])
    for device in ("pi", "nano"):
        now[0] += 2.0
        live(events.DeviceStatus(1, device, Status("t1", "training", 120, 400)))
    assert read_live(tmp_path)["devices"]["nano"]["done"] == 120

    now[0] += 0.5
    live(events.TaskFailed(1, "nano", "late"))
    assert set(read_live(tmp_path)["devices"]) == {"pi", "nano"}
    live.write()

    assert set(read_live(tmp_path)["devices"]) == {"pi"}


def test_a_damaged_live_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / LIVE).write_bytes(b"{")

    assert read_live(tmp_path) == {}
    assert not is_served(tmp_path)
