"""The ledger counts each round that was sent once, whatever was killed, and forgets nothing."""

from pathlib import Path

import pytest

from fedwright.protocol.errors import StorageError
from fedwright.server_runtime.rounds.privacy.accounting import Release
from fedwright.server_runtime.rounds.privacy.ledger import LEDGER, Entry, Ledger


def test_a_round_that_is_planned_again_after_a_kill_counts_once_for_all_who_were_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / LEDGER)
    ledger.append(Entry(1, 0, 1.5, 0.5, 1.0, ["a", "b"]))
    ledger.append(Entry(1, 0, 1.5, 0.5, 1.0, ["b", "c"]))

    again = Ledger(tmp_path / LEDGER)

    assert again.releases() == [Release(1.5, 0.5)]
    assert again.by_device() == {name: [Release(1.5, 0.5)] for name in "abc"}


def test_a_round_after_a_rollback_counts_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / LEDGER)
    ledger.append(Entry(1, 0, 1.5, devices=["a"]))
    ledger.append(Entry(1, 1, 1.5, devices=["a"]))

    assert len(ledger.releases()) == 2


def test_devices_are_written_when_they_change(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / LEDGER)
    for number, devices in enumerate((["a", "b"], ["a", "b"], ["a"]), 1):
        ledger.append(Entry(number, 0, 1.0, devices=devices))

    assert [entry.devices for entry in Ledger(tmp_path / LEDGER).entries] == [["a", "b"], None, ["a"]]
    assert {device: len(told) for device, told in ledger.by_device().items()} == {"a": 3, "b": 2}


def test_a_torn_last_line_was_never_acted_on_and_goes(tmp_path: Path) -> None:
    path = tmp_path / LEDGER
    Ledger(path).append(Entry(1, 0, 1.0, devices=["a"]))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round": 2, "noi')

    Ledger(path).append(Entry(2, 0, 2.0, devices=["a"]))

    assert [entry.round for entry in Ledger(path).entries] == [1, 2]


def test_a_damaged_line_is_told_and_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / LEDGER
    Ledger(path).append(Entry(1, 0, 1.0, devices=["a"]))
    path.write_bytes(b"{]\n" + path.read_bytes())

    with pytest.raises(StorageError, match="put a copy of the file back"):
        Ledger(path)


def test_the_clip_after_a_round_is_the_last_that_was_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / LEDGER)
    for entry in (Entry(1, next_clip=0.8), Entry(2, next_clip=0.6), Entry(1, 1, next_clip=0.7)):
        ledger.append(entry)

    assert (ledger.clip_after(0), ledger.clip_after(1), ledger.clip_after(2)) == (None, 0.7, 0.6)
    assert ledger.releases() == []
