"""Secrets of a device: whole or not there, for their owner alone, and never of a wrong length."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from fedwright.device_runtime.describe.noise import ClassMeanNoise
from fedwright.device_runtime.store.secret import kept_secret
from fedwright.protocol.errors import ConfigError


def mode_of(path: Any) -> Any:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "pi" / "noise"

    first = kept_secret(path, 16)

    assert len(first) == 16
    assert kept_secret(path, 16) == first
    assert mode_of(path) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["noise"]


@pytest.mark.parametrize("held", [b"", b"short", bytes(17)], ids=["empty", "short", "long"])
def test_a_secret_of_another_length_is_refused(tmp_path: Path, held: Any) -> None:
    path = tmp_path / "noise"
    path.write_bytes(held)

    with pytest.raises(ConfigError, match=f"noise holds {len(held)} bytes instead of 16; put a copy of it back, or"):
        kept_secret(path, 16)
    assert path.read_bytes() == held


def test_a_draft_that_others_may_read_does_not_become_the_secret(tmp_path: Path) -> None:
    (tmp_path / "noise.new").write_bytes(b"seen by all")
    (tmp_path / "noise.new").chmod(0o644)

    kept_secret(tmp_path / "noise", 16)

    assert mode_of(tmp_path / "noise") == 0o600


def test_a_secret_that_others_may_read_is_shut(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(16)))
    (tmp_path / "noise").chmod(0o644)

    assert kept_secret(tmp_path / "noise", 16) == bytes(range(16))
    assert mode_of(tmp_path / "noise") == 0o600


def test_a_secret_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))

    kept_secret(tmp_path / "noise", 16)

    assert synced == [str(tmp_path / "noise.new"), str(tmp_path)]


def test_noise_from_an_empty_secret_would_be_known_to_all() -> None:
    with pytest.raises(ConfigError, match="a noise secret has 0 bytes but must have 16"):
        ClassMeanNoise(0.5, b"", told=(1, 2))
