"""A damaged store and a full disk end in one sentence with a way out, and nothing that was learnt is lost."""

import errno
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwright.cli.main import main
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import StorageError
from fedwright.protocol.link.memory import MemoryBroker
from helpers.edges import RunningEdge
from helpers.fleet import WAIT_S
from helpers.simulation import make_config

# Files may not grow beyond this, which is what a full disk comes to.
LIMITED = """
import resource, sys
from fedwright.cli.main import main
from fedwright.server_runtime import run
def limit(): resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
conduct = run.conduct
def conduct_limited(*args): limit(); return conduct(*args)
run.conduct = conduct_limited
if sys.argv[2] == "from the start": limit()
sys.exit(main(sys.argv[3:]))
"""


def write_config(rounds: int = 8) -> None:
    _, text = make_config(
        Path("runs"),
        rounds=rounds,
        model={"model": "mlp"},
        export={"global_model": True},
        simulate={"evaluate_every": 0},
    )
    with open("run.toml", "w") as file:
        file.write(text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a simulation that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_config()
        assert main(["simulate", "run.toml"]) == 0
    return folder / "runs/run.simulated"


@pytest.fixture
def copied(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_config()
    shutil.copytree(whole, tmp_path / "runs/run.simulated")
    return tmp_path / "runs/run.simulated"


def spoil_head(data: bytearray) -> None:
    data[:64] = b"x" * 64


def spoil_pages(data: bytearray) -> None:
    for at in range(4096, len(data), 4096):
        data[at : at + 4000] = b"\xff" * 4000


def cut_short(data: bytearray) -> None:
    del data[9000:]


@pytest.mark.parametrize("spoil", [spoil_head, spoil_pages, cut_short], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("words", ["simulate run.toml", "server status", "server export model.onnx"])
def test_a_damaged_store_is_said_to_be_so(
    copied: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[..., Any], words: str
) -> None:
    data = bytearray((copied / "rounds.sqlite").read_bytes())
    spoil(data)
    (copied / "rounds.sqlite").write_bytes(data)

    assert main(words.split()) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("fedwright: runs/run.simulated/rounds.sqlite is damaged (")
    assert line.endswith(
        "put a copy of it back, or begin anew with the option --anew of `fedwright server run` and `simulate`, which "
        "keeps this under another name [FW600]"
    )


def test_a_record_that_is_not_one_is_damage_too(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = sqlite3.connect(copied / "rounds.sqlite")
    db.execute("UPDATE run SET record = x'c1c1'")
    db.commit()
    db.close()

    assert main(["server", "status"]) == 1
    assert "rounds.sqlite is damaged (what it holds is not readable:" in capsys.readouterr().err


def test_the_way_out_of_damage_works(copied: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "rounds.sqlite").write_bytes(b"x" * 5000)

    assert main(["simulate", "run.toml", "--anew"]) == 0
    assert (copied / "model.onnx").read_bytes() == (whole / "model.onnx").read_bytes()
    assert (copied.parent / "run.simulated.1/rounds.sqlite").read_bytes() == b"x" * 5000


@pytest.mark.parametrize(
    ("limit", "since", "says"),
    [
        (260_000, "the run", "rounds.sqlite cannot be used ("),
        (3_000, "the run", "rounds.sqlite cannot be used ("),
        (3_000, "from the start", "rounds.sqlite cannot be used ("),
    ],
    ids=["in a round", "before the first", "before anything"],
)
def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on_when_there_is_room(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, since: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config()
    words = [sys.executable, "-c", LIMITED, str(limit), since, "simulate", "run.toml"]
    stopped = subprocess.run(words, capture_output=True, text=True, timeout=120)

    last = stopped.stderr.splitlines()[-1]
    assert stopped.returncode == 1
    assert "Traceback" not in stopped.stderr
    assert ("round 1/8 took" in stopped.stderr) == (limit > 100_000)
    assert last.startswith("fedwright: ")
    assert says in last
    assert last.endswith("the same command then goes on where it stopped [FW600]")
    assert main(["simulate", "run.toml"]) == 0
    assert (tmp_path / "runs/run.simulated/model.onnx").read_bytes() == (whole / "model.onnx").read_bytes()


def test_a_full_disk_where_blobs_are_is_one_sentence_too(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config()
    kept = iter(range(12))

    adopt_blob = BlobStore._adopt

    def adopt(self: BlobStore, file: Path, sha256: str) -> Path:
        if next(kept, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return adopt_blob(self, file, sha256)

    with monkeypatch.context() as patch:
        patch.setattr(BlobStore, "_adopt", adopt)
        assert main(["simulate", "run.toml"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fedwright: blobs cannot be written to ")
    assert last.endswith(
        "runs/run.simulated/blobs (No space left on device); free some space there, the same command then goes on "
        "where it stopped [FW600]"
    )
    assert main(["simulate", "run.toml"]) == 0
    assert (tmp_path / "runs/run.simulated/model.onnx").read_bytes() == (whole / "model.onnx").read_bytes()


def test_a_damaged_store_of_an_edge_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "edge").mkdir()
    (tmp_path / "edge/edge.sqlite").write_bytes(b"x" * 5000)
    edge = RunningEdge(MemoryBroker(), "edge", tmp_path)
    edge.thread.join(WAIT_S)
    edge.stop()

    assert isinstance(edge.error, StorageError)
    assert "edge.sqlite is damaged (file is not a database); put a copy of it back, or remove" in str(edge.error)
