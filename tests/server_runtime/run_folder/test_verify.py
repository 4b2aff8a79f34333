"""`fedwright server check`: a whole run is said to be whole, and each kind of damage is named with a way out."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.cli.main import main
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import BadBlob
from fedwright.server_runtime.methods.state import MethodState
from fedwright.server_runtime.run_folder.folder import RunFolder, claim_folder
from fedwright.server_runtime.run_folder.verify import verify_run
from fedwright.simulation.simulate import simulate
from helpers.resume import Killed, die_after
from helpers.simulation import make_config

# Of four devices two have answered in the second round when the server dies.
UPDATES = 6


def settings(folder: Any) -> Any:
    return make_config(folder, rounds=2, model={"model": "mlp"}, simulate={"evaluate_every": 0})


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that died in its second round."""
    folder = tmp_path_factory.mktemp("stopped")
    config, text = settings(folder)
    with pytest.raises(Killed):
        simulate(config, text, observer=die_after(UPDATES))
    [run] = folder.iterdir()
    return run


@pytest.fixture
def run(stopped: Any, tmp_path: Path) -> Any:
    """A copy of it."""
    return shutil.copytree(stopped, tmp_path / stopped.name)


def change(run: Any, *statements: Any) -> None:
    db = sqlite3.connect(run / "rounds.sqlite")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def state_of(run: Any) -> Any:
    db = sqlite3.connect(run / "rounds.sqlite")
    [(sha256,)] = db.execute("SELECT state FROM closed")
    db.close()
    return run / "blobs" / sha256


def flip(file: Any) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def problems(run: Any) -> Any:
    return [problem.line() for problem in verify_run(run).problems]


def test_a_run_that_was_stopped_is_whole(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in (run / "blobs").iterdir())

    assert main(["server", "check", str(run)]) == 0
    # The state, which is what all devices are sent too, and the updates of two of them.
    assert capsys.readouterr().out == f"{run}: whole after round 1, its blobs as well (3)\n"
    assert sorted(path.name for path in (run / "blobs").iterdir()) == before


def test_what_is_wrong_is_said_to_programs_too(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flip(state_of(run))

    assert main(["server", "check", str(run), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["whole"] is False
    assert said["problems"][0]["what"].startswith("the state after round 1 is damaged: the bytes of ")


def test_an_audit_log_whose_last_lines_are_gone_is_noticed(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log = run / "audit.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if b'"round":1' in line)
    log.write_bytes(b"".join(lines[:first]))

    words = "lines are missing at its end: they tell of 0 rounds, and the run has closed 1"
    assert words in problems(run)[0]
    assert main(["server", "audit", str(run), "--verify"]) == 1
    assert words in capsys.readouterr().out


def test_a_rotten_state_is_named_and_left_where_it_is(run: Any) -> None:
    flip(state_of(run))

    [line] = problems(run)
    assert line.startswith("the state after round 1 is damaged: the bytes of ")
    assert line.endswith("put a copy of it back, or begin anew with --anew")
    assert state_of(run).exists()


def test_a_rotten_state_ends_a_resumed_run_in_one_sentence(run: Any) -> None:
    flip(state_of(run))
    config, text = settings(run.parent)

    with pytest.raises(BadBlob, match="is damaged: its bytes are no longer those of its name; put a copy of it back"):
        simulate(config, text)


def test_a_state_that_is_not_finite_is_named(run: Any) -> None:
    state = MethodState.read(state_of(run))
    name = sorted(state.tensors)[0]
    state.tensors[name] = np.full_like(state.tensors[name], np.inf)
    sha256 = BlobStore(run / "blobs").put_bytes(state.to_bytes())
    change(run, f"UPDATE closed SET state = '{sha256}'")

    [line] = problems(run)
    assert line.startswith(f"the state after round 1 holds values in {name} that are not finite; ")


def test_missing_blobs_are_named_by_what_they_are(run: Any) -> None:
    for file in (run / "blobs").iterdir():
        file.unlink()

    first, *others = problems(run)
    assert first.startswith("the state after round 1 is missing (")
    assert [line.partition(" is missing (")[0] for line in others] == [
        "the update of device-0 in round 2",
        "the update of device-1 in round 2",
    ]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("INSERT INTO reply (task_id, outcome, detail) VALUES ('x', 'late', '')", "a reply to task x that nobody"),
        ("INSERT INTO absorbed VALUES ('x', 2, 0)", "task x counted as used without a reply"),
        ("UPDATE reply SET message = NULL WHERE number = 1", "an update to task "),
        ("DELETE FROM stage WHERE round = 2", "in a stage that was never planned"),
        ("INSERT INTO closed SELECT 3, 0, state, metrics FROM closed", "round 3 closed although the one before it"),
    ],
    ids=["strange reply", "used without a reply", "empty update", "no stage", "gap"],
)
def test_rows_that_contradict_each_other_are_named(run: Any, statement: Any, says: Any) -> None:
    change(run, statement)

    lines = problems(run)
    assert says in lines[0]
    assert lines[0].startswith(f"{run}/rounds.sqlite has ")


def test_a_damaged_store_is_named(run: Any) -> None:
    data = bytearray((run / "rounds.sqlite").read_bytes())
    data[4096:8192] = b"\xff" * 4096
    (run / "rounds.sqlite").write_bytes(data)

    assert problems(run)[0].startswith(f"{run}/rounds.sqlite ")


def test_an_audit_log_that_was_changed_is_named(run: Any) -> None:
    file = run / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b"device-1", b"device-9", 1))

    [line] = problems(run)
    assert line.startswith(f"{file} was changed or damaged: line ")


def test_a_run_that_a_server_is_at_work_on_is_left_alone(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with claim_folder(RunFolder(run)):
        assert main(["server", "check", str(run)]) == 1
    assert "another server is at work on the run in" in capsys.readouterr().err


def test_a_folder_without_a_run_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "check", str(tmp_path)]) == 1
    assert f"{tmp_path} holds no run" in capsys.readouterr().err
