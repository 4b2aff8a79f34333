"""`fedwright device wheelhouse`: packages for another machine than this one."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedwright import __version__
from fedwright.cli import wheelhouse
from fedwright.cli.main import main


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What pip was asked for; it brings one wheel, or fails when the folder is called so."""
    made: list[list[str]] = []

    def answer(call: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        made.append(call)
        folder = Path(call[call.index("--dest") + 1])
        if folder.name == "unreachable":
            return subprocess.CompletedProcess(call, 1, "", "ERROR: No matching distribution found for onnxruntime\n")
        (folder / "numpy-2.0-cp312-cp312-manylinux_2_28_aarch64.whl").write_bytes(b"x" * 1000)
        return subprocess.CompletedProcess(call, 0, "", "")

    monkeypatch.setattr(wheelhouse.subprocess, "run", answer)  # type: ignore[attr-defined]
    return made


def test_pip_is_asked_for_the_boards_packages_only(
    calls: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / f"fedwright-{__version__}-py3-none-any.whl"
    own.write_bytes(b"wheel")

    house = tmp_path / "house"
    assert main(["device", "wheelhouse", str(house), "--python", "3.12", "--glibc", "31", "--wheel", str(own)]) == 0

    [call] = calls
    tags = [call[place + 1] for place, word in enumerate(call) if word == "--platform"]
    assert "--only-binary=:all:" in call
    assert call[call.index("--python-version") + 1] == "3.12"
    assert {"manylinux_2_17_aarch64", "manylinux_2_28_aarch64", "manylinux2014_aarch64"} <= set(tags)
    assert "manylinux_2_32_aarch64" not in tags
    assert call[-1] == f"fedwright[device]=={__version__}"
    assert (house / own.name).read_bytes() == b"wheel"
    assert "house: 2 packages" in capsys.readouterr().out


def test_what_pip_lacks_is_said_in_a_sentence(
    calls: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["device", "wheelhouse", str(tmp_path / "unreachable")]) == 1

    assert "No matching distribution found for onnxruntime); check the network" in capsys.readouterr().err
    assert len(calls) == 1


@pytest.mark.parametrize("version", ["2.7", "3.9", "3", "new"])
def test_a_python_that_is_too_old(version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["device", "wheelhouse", "--python", version, str(tmp_path)])

    assert "is no Python that devices can have" in capsys.readouterr().err
