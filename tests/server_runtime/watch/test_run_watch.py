"""A run as it is looked at: state, fleet, stages and who holds them up."""

import json
from pathlib import Path
from typing import Any

from fedwright.protocol.support.files import lock_folder
from fedwright.server_runtime.rounds.audit import AUDIT, AuditLog
from fedwright.server_runtime.watch.live import LIVE
from fedwright.server_runtime.watch.run_watch import RunWatch

BEGAN = ("began", {"about": {"run": "pets", "method": "fedavg", "rounds": 3}})
JOINED = [("joined", {"device": name, "samples": 9, "board": {"model": "Pi 4", "cores": 4}}) for name in ("nano", "pi")]
SENT = ("sent", {"round": 1, "to": {"pi": ["t1", "b1"], "nano": ["t2", "b2"]}, "offers": {"pi": {"width": 0.5}}})
STATS = {"holdout": 10, "correct_before": 7, "steps": 4, "train_s": 2.0}
ACCEPTED = ("accepted", {"round": 1, "device": "pi", "stats": STATS, "spans": {"waiting": 0, "down": 1, "train": 2}})


def write(folder: Path, *lines: tuple[str, dict[str, Any]]) -> None:
    log = AuditLog(folder / AUDIT)
    for what, facts in lines:
        log.append(what, **facts)
    log.close()


def watched(folder: Path, now_s: float = 1000.0) -> RunWatch:
    watch = RunWatch(folder, clock=lambda: now_s)
    watch.look()
    return watch


def test_a_run_that_nobody_serves_and_that_did_not_end_was_killed(tmp_path: Path) -> None:
    write(tmp_path, BEGAN, *JOINED)

    assert watched(tmp_path).state == "killed"
    assert [row["state"] for row in watched(tmp_path).fleet()] == ["away", "away"]


def test_a_device_at_work_shows_what_it_says_of_itself(tmp_path: Path) -> None:
    write(tmp_path, BEGAN, *JOINED, SENT, ACCEPTED)
    status = {"state": "fetching", "done": 43, "of": 100, "temperature_c": 61.0, "free_bytes": 5, "limit_bytes": 8}
    live = {"devices": {"nano": {"time": 995.0, **status}, "pi": {"time": 995.0, **status}}}
    (tmp_path / LIVE).write_text(json.dumps(live))

    with lock_folder(tmp_path) or (tmp_path / AUDIT).open():
        nano, pi = watched(tmp_path).fleet()
        stale, _ = watched(tmp_path, now_s=9999.0).fleet()

    assert (nano["state"], nano["done"], nano["of"], nano["temperature_c"]) == ("fetching", 43, 100, 61.0)
    assert (nano["seen_s"] > 995.0, nano["ram_bytes"]) == (True, 8)
    # It has answered meanwhile, so that what it said before no longer holds.
    assert (pi["state"], pi["width"], pi["accuracy"]) == ("idle", 0.5, 0.7)
    assert stale["state"] == "training"


def test_a_stage_says_where_time_went_and_who_holds_it_up(tmp_path: Path) -> None:
    write(tmp_path, BEGAN, *JOINED, SENT, ACCEPTED)

    stage = watched(tmp_path).stage(1)

    assert stage is not None
    assert stage["held_up_by"] == ["nano"]
    assert (stage["answered"], stage["devices"]) == (1, 2)
    assert stage["tasks"][1]["spans"] == {"waiting": 0, "down": 1, "train": 2}
    assert stage["tasks"][1]["step_s"] == 0.5
    assert watched(tmp_path).stage(2) is None


def test_figures_outlive_what_each_device_did(tmp_path: Path) -> None:
    closed = ("round closed", {"round": 1, "metrics": {"loss": 0.5}, "seconds": 3.0})
    write(tmp_path, BEGAN, *JOINED, SENT, ACCEPTED, closed)
    watch = watched(tmp_path)
    watch.history.rounds[1].tasks.clear()

    assert watch.figures()[0]["accuracy_worst"] == 0.7
    assert watch.summary()["rounds_done"] == 1


def test_what_a_device_measured_of_its_link_is_shown(tmp_path: Path) -> None:
    write(tmp_path, BEGAN, *JOINED, ("measured", {"device": "pi", "link": {"bytes_per_s": 2e6}}))

    assert [row["link_bytes_per_s"] for row in watched(tmp_path).fleet()] == [None, 2e6]


def test_orders_in_force_are_those_of_the_last_one(tmp_path: Path) -> None:
    first = ("ordered", {"order": "a", "force": {"paused": True, "taken_out": ["pi"], "rounds": 9}})
    write(tmp_path, BEGAN, *JOINED, first)
    out = watched(tmp_path)
    write(tmp_path, ("ordered", {"order": "b", "force": {"paused": False, "taken_out": []}}))

    assert [row["state"] for row in out.fleet()] == ["away", "taken out"]
    assert out.history.about["rounds"] == 9
    assert watched(tmp_path).history.orders == {"paused": False, "taken_out": []}
    assert [row["state"] for row in watched(tmp_path).fleet()] == ["away", "away"]
