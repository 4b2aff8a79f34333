"""The audit log of a run: complete, chained, cut where a crash has torn it, and continued."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fedwright.cli.main import main
from fedwright.server_runtime.rounds import audit as module
from fedwright.server_runtime.rounds.audit import AUDIT, FIRST, AuditLog, check_audit, read_audit
from fedwright.simulation.simulate import simulate
from helpers.resume import Killed, die_after
from helpers.simulation import make_config


def write(folder: Any, *whats: Any) -> None:
    log = AuditLog(folder / AUDIT)
    for what in whats:
        log.append(what, device="pi")
    log.close()


def whats(folder: Any) -> Any:
    return [entry["what"] for entry in read_audit(folder)]


def test_each_line_holds_the_hash_of_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, "joined", "accepted")
    write(tmp_path, "lost")

    entries = list(read_audit(tmp_path))
    assert [entry["what"] for entry in entries] == ["joined", "accepted", "lost"]
    assert entries[0]["before"] == FIRST
    assert len({entry["before"] for entry in entries}) == 3
    assert check_audit(tmp_path).lines == 3
    assert not check_audit(tmp_path).problem


def drop_second(lines: Any) -> None:
    del lines[1]


def swap(lines: Any) -> None:
    lines[1], lines[2] = lines[2], lines[1]


def change_device(lines: Any) -> None:
    lines[1] = lines[1].replace(b'"pi"', b'"xx"')


def repeat(lines: Any) -> None:
    lines.insert(1, lines[1])


@pytest.mark.parametrize("tamper", [drop_second, swap, change_device, repeat], ids=lambda tamper: tamper.__name__)
def test_no_line_is_changed_taken_out_or_put_in_unseen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tamper: Any
) -> None:
    write(tmp_path, "joined", "accepted", "refused", "lost")
    lines = (tmp_path / AUDIT).read_bytes().splitlines(keepends=True)
    tamper(lines)
    (tmp_path / AUDIT).write_bytes(b"".join(lines))

    assert main(["server", "audit", str(tmp_path), "--verify"]) == 1
    assert "does not follow the one before it; it was changed or damaged there" in capsys.readouterr().out


@pytest.mark.parametrize("kept", [0, 1, 30], ids=["nothing", "one byte", "a part"])
def test_a_torn_line_is_cut_and_noted(tmp_path: Path, kept: Any) -> None:
    write(tmp_path, "joined", "accepted")
    data = (tmp_path / AUDIT).read_bytes()
    (tmp_path / AUDIT).write_bytes(data + b'{"time":1,"what":"a long line that a crash has torn'[:kept])
    assert check_audit(tmp_path).torn is (kept > 0)

    write(tmp_path, "lost")

    assert whats(tmp_path) == ["joined", "accepted", *(["cut"] if kept else []), "lost"]
    assert not check_audit(tmp_path).problem


def test_a_log_that_is_nothing_but_a_torn_line_begins_anew(tmp_path: Path) -> None:
    (tmp_path / AUDIT).write_bytes(b'{"time"')

    write(tmp_path, "joined")

    assert whats(tmp_path) == ["cut", "joined"]
    assert not check_audit(tmp_path).problem


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1000])
def test_the_last_line_is_found_whatever_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: Any
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    for what in ("joined", "x" * 250, "y"):
        write(tmp_path, what)

    assert check_audit(tmp_path).lines == 3
    assert not check_audit(tmp_path).problem


def test_a_killed_and_resumed_run_has_one_chain_that_tells_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, text = make_config(tmp_path, rounds=2, model={"model": "mlp"}, simulate={"evaluate_every": 0})
    with pytest.raises(Killed):
        simulate(config, text, observer=die_after(6))
    simulate(config, text)
    [run] = tmp_path.iterdir()

    told = list(read_audit(run))
    count = {what: sum(entry["what"] == what for entry in told) for what in whats(run)}
    # Four devices, two rounds and the measurement at the end.
    assert count["accepted"] == 12
    assert count["round closed"] == 2
    assert count["began"] == 2
    assert [entry["how"] for entry in told if entry["what"] == "ended"] == ["stopped", "complete"]
    assert {"by", "host", "command", "release"} <= told[0].keys()
    sent = next(entry for entry in told if entry["what"] == "sent")
    assert sorted(sent["to"]) == ["device-0", "device-1", "device-2", "device-3"]
    assert all(len(weights) == 64 for _, weights in sent["to"].values())
    assert all(len(entry["blob"]) == 64 for entry in told if entry["what"] == "accepted" and not entry["evaluation"])
    assert main(["server", "audit", str(run), "--verify"]) == 0
    assert f"{len(told)} lines hold together; the last one has the hash " in capsys.readouterr().out
    assert main(["server", "audit", str(run), "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == told
    assert main(["server", "check", str(run)]) == 0


def test_a_run_without_a_log_is_said_to_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "audit", str(tmp_path)]) == 1
    assert "has no audit.jsonl; give the folder of a run" in capsys.readouterr().err


def test_a_line_costs_next_to_nothing(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / AUDIT, sync=False)
    began_s = time.process_time()
    for _ in range(2000):
        log.append("accepted", round=1, evaluation=False, device="device-0", samples=10, blob="0" * 64)
    took_s = time.process_time() - began_s
    log.close()

    assert took_s / 2000 < 0.001
