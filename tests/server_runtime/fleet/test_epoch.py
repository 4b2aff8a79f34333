"""Each life of a server has a higher number than those before, whatever its clock shows."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.fleet.epoch import next_epoch


def test_numbers_rise_with_the_clock_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = []
    for now_s in (1000.0, 1000.0, 5.0, 2000.5):
        monkeypatch.setattr("time.time", lambda now_s=now_s: now_s)
        numbers.append(next_epoch(tmp_path))

    assert numbers == [1000, 1001, 1002, 2000]


def test_a_folder_that_was_put_back_goes_on_above_what_it_forgot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    used = next_epoch(tmp_path)
    (tmp_path / "epoch").write_text("3\n")
    monkeypatch.setattr("time.time", lambda: 1001.0)

    assert next_epoch(tmp_path) > used


@pytest.mark.parametrize(("text", "says"), [("x", "holds no number"), ("-4", "holds -4"), (str(2**60), "holds 1152")])
def test_what_is_no_number_is_refused(tmp_path: Path, text: Any, says: Any) -> None:
    (tmp_path / "epoch").write_text(text)

    with pytest.raises(ConfigError, match=says):
        next_epoch(tmp_path)
