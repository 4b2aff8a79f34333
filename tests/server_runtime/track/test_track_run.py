"""Tracking a run: every round once, no round waits, drops are counted, a tool that fails ends nothing."""

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedwright.cli.main import main
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.run_folder.folder import folder_of
from fedwright.server_runtime.track import run as track_run
from fedwright.server_runtime.track import thread as module
from fedwright.server_runtime.track.base import Described
from fedwright.server_runtime.track.jsonl import JsonLines
from fedwright.server_runtime.track.run import tracked
from fedwright.server_runtime.track.thread import Numbers, TrackThread
from fedwright.simulation.simulate import simulate
from helpers.resume import Killed
from helpers.simulation import make_config

TRACK = {"to": ["jsonl"]}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


class Held:
    """A tool that waits until it is let go."""

    def __init__(self) -> None:
        self.go, self.at = threading.Event(), threading.Event()
        self.told: list[int] = []

    def numbers(self, step: int, figures: Mapping[str, float]) -> None:
        self.at.set()
        assert self.go.wait(20)
        self.told.append(step)

    def file(self, path: Path) -> None: ...

    def close(self) -> None: ...


def test_a_slow_tool_holds_nobody_up_and_what_is_left_out_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "QUEUE", 3)
    held = Held()
    thread = TrackThread(["held"], Described("r", "i", tmp_path), opener=lambda name, described: held)
    thread.tell(Numbers(0, {}))
    assert held.at.wait(20)

    for step in range(1, 11):
        thread.tell(Numbers(step, {}))
    held.go.set()
    thread.close()

    assert held.told == [0, 1, 2, 3]
    assert (thread.told, thread.dropped) == (4, 7)
    assert "left out the figures of 7 rounds" in caplog.text


def test_a_tool_that_hangs_does_not_keep_a_run_from_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    thread = TrackThread(["held"], Described("r", "i", tmp_path), opener=lambda name, described: held)
    thread.tell(Numbers(1, {}))

    thread.close(patience_s=0.05)

    assert "did not end within" in caplog.text
    held.go.set()
    thread._thread.join(20)


def test_a_tool_that_fails_is_told_no_more_and_the_others_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(JsonLines):
        def numbers(self, step: int, figures: Mapping[str, float]) -> None:
            raise OSError("no space left")

    def opener(name: str, described: Described) -> Any:
        if name == "broken":
            raise ValueError("no such server")
        kind = Failing if name == "failing" else JsonLines
        return kind(replace(described, folder=tmp_path / name))

    caplog.set_level(logging.WARNING)
    thread = TrackThread(["broken", "failing", "whole"], Described("r", "i", tmp_path), opener=opener)
    for step in (1, 2):
        thread.tell(Numbers(step, {"loss": 1.0}))
    thread.close()

    assert [line["round"] for line in lines(tmp_path / "whole")] == [1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "broken failed and is told no more of this run",
        "failing failed and is told no more of this run",
    ]


def test_a_simulation_tells_each_round_its_measurements_devices_model_and_ledger(tmp_path: Path) -> None:
    export, measured = {"global_model": True}, {"evaluate_every": 1}
    config, text = make_config(tmp_path, rounds=2, track=TRACK, simulate=measured, export=export)

    found = simulate(config, text)

    told = lines(found.folder / "track")
    rounds = [line for line in told if "seconds" in line]
    assert [line["round"] for line in rounds] == [1, 2]
    assert {"loss", "updates", "accuracy_mean", "accuracy_worst", "train_s", "bytes_up", "bytes_down"} <= set(rounds[0])
    assert [line["round"] for line in told if "test/mean" in line] == [1, 2]
    track = found.folder / "track"
    assert (track / "config.toml").read_text() == text
    assert "Differs:" in (track / "ledger.txt").read_text()
    assert {one["device"] for one in json.loads((track / "fleet-costs.json").read_text())} == set(found.outcome.devices)
    assert found.outcome.model is not None
    assert (track / "model.onnx").read_bytes() == found.outcome.model.read_bytes()


def test_rounds_that_nobody_was_told_of_before_a_kill_are_told_after_it(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=3, track=TRACK)

    def die(event: events.Event) -> None:
        if isinstance(event, events.RoundClosed) and event.round == 2:
            raise Killed

    with pytest.raises(Killed):
        simulate(replace(config, track=replace(config.track, to=())), text, observer=die)
    found = simulate(config, text)

    told = [line["round"] for line in lines(found.folder / "track") if "seconds" in line]
    assert told == [1, 2, 3]


def test_a_run_that_is_resumed_tells_no_round_twice_and_keeps_its_identity(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=2, track=TRACK)
    found = simulate(config, text)
    memory = found.folder / "track" / track_run.MEMORY
    identity = json.loads(memory.read_text())["identity"]
    longer = replace(config, run=replace(config.run, rounds=3))

    simulate(longer, text)

    assert [line["round"] for line in lines(found.folder / "track") if "seconds" in line] == [1, 2, 3]
    assert json.loads(memory.read_text()) == {"identity": identity, "last_round": 3}


def test_a_server_that_stands_by_opens_no_tool_and_tells_what_it_takes_over(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=2, track=TRACK)
    folder = folder_of(config).path
    heard: list[events.Event] = []

    with tracked(config, text, folder, heard.append) as tracker:
        tracker.observe(events.Warned("standing by"))
        assert heard == [events.Warned("standing by")]
        assert not (folder / "track").exists()
        assert "track" not in {one.name for one in threading.enumerate()}
        # Another server has the run meanwhile, and falls silent before it tells of it.
        simulate(replace(config, track=replace(config.track, to=())), text)
        assert not (folder / "track").exists()
        tracker.begin()

    assert [line["round"] for line in lines(folder / "track") if "seconds" in line] == [1, 2]


def test_without_tools_there_is_neither_thread_nor_folder(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=1)
    heard: list[events.Event] = []

    with tracked(config, text, tmp_path / "run", heard.append) as tracker:
        tracker.begin()
        tracker.observe(events.Warned("careful"))
        assert "track" not in {one.name for one in threading.enumerate()}

    assert heard == [events.Warned("careful")]
    assert not (tmp_path / "run").exists()


def test_a_missing_tool_is_found_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text('[method]\nname = "fedavg"\n[track]\nto = ["wandb"]\n')
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert main(["validate", str(tmp_path / "run.toml")]) == 1

    assert 'pip install "fedwright[wandb]"' in capsys.readouterr().err
