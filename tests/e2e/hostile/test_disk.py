"""What lies on disk is damaged, missing, too short or has no room: the commands say so in a sentence, agents go on."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Ack, Refusal, Update
from helpers.data_files import save_points
from helpers.real_device import WAIT_S, RealDevice
from helpers.tiny_artifact import make_artifact

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CONFIG = """
[run]
name = "night"
rounds = 1
[simulate]
data = "npz:data.npz"
devices = 2
[model]
model = "mlp"
[method]
name = "fedavg"
"""


def said(folder: Path, *words: str) -> str:
    """The one line in which a command refuses."""
    command = [sys.executable, "-m", "fedwright", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    return (done.stderr or done.stdout).strip().splitlines()[-1]


def test_a_damaged_store_and_a_damaged_blob_are_named_and_nothing_else_is_touched(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    save_points(tmp_path / "data.npz", seed=0)
    made = subprocess.run([sys.executable, "-m", "fedwright", "simulate", "run.toml"], cwd=tmp_path, timeout=WAIT_S)
    assert made.returncode == 0
    (run,) = (tmp_path / "runs").iterdir()
    name = str(run.relative_to(tmp_path))
    blob = max((run / "blobs").iterdir(), key=lambda file: file.stat().st_size)
    whole = blob.read_bytes()
    blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    assert blob.name[:12] in said(tmp_path, "server", "check", name)
    blob.write_bytes(whole)
    store = run / "rounds.sqlite"
    with sqlite3.connect(store) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    kept = store.read_bytes()
    store.write_bytes(kept[:100] + os.urandom(4000) + kept[4100:])

    for words in (("server", "check", name), ("server", "resume", name), ("server", "status", name)):
        assert "rounds.sqlite" in said(tmp_path, *words)


def agent(folder: Path, device: str, *further: str) -> tuple[str, ...]:
    """The words that start an agent, whose broker is away."""
    save_points(folder / "data.npz", seed=0)
    words = ("device", "run", "--device", device, "--broker", "mqtt://127.0.0.1:9", "--data", "npz:data.npz")
    return (*words, "--state", "state", *further)


def test_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for name in ("..", "../x", "pi\n"):
        assert "must be 1 to 64 of the characters" in said(place, *agent(place, name))
    assert "must be 1 to 64 of the characters" in said(place, "server", "enroll", "../x", "--broker", "mqtts://h:8883")

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["data.npz", "place"]


def test_a_secret_for_noise_that_is_empty_is_not_used(tmp_path: Path) -> None:
    secret = tmp_path / "state" / "default" / "pi" / "noise"
    secret.parent.mkdir(parents=True)
    secret.touch()

    assert "holds 0 bytes instead of" in said(tmp_path, *agent(tmp_path, "pi", "--noise", "0.5"))


class SmallDisk:
    """A disk of its own for the state of an agent."""

    def __init__(self, place: Path) -> None:
        self._place, self._filler = place, place / "filler"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
        self.mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0

    def fill(self, device: RealDevice) -> None:
        """Write until there is no room."""
        del device
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def empty(self, device: RealDevice) -> None:
        """Make room again."""
        del device
        self._filler.unlink()

    def remove(self) -> None:
        """Take it away."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self._place)], check=True)


class NoByteMore:
    """Files of the agent's processes may not grow, which comes to the same; anybody may say that of his own."""

    def __init__(self, place: Path) -> None:
        del place

    def fill(self, device: RealDevice) -> None:
        """No byte more."""
        self._limit(device, 0)

    def empty(self, device: RealDevice) -> None:
        """As much as before."""
        self._limit(device, psutil.RLIM_INFINITY)

    def _limit(self, device: RealDevice, soft: int) -> None:
        for pid in (device.process.pid, device.trainer):
            process = psutil.Process(pid)
            _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
            process.rlimit(psutil.RLIMIT_FSIZE, (hard if soft == psutil.RLIM_INFINITY else soft, hard))

    def remove(self) -> None:
        """Nothing is left of it."""


def can_mount() -> bool:
    """Whether this user may mount a disk here."""
    with tempfile.TemporaryDirectory() as place:
        disk = SmallDisk(Path(place) / "disk")
        disk.remove()
    return disk.mounted


FULL_DISKS: list[type[SmallDisk] | type[NoByteMore]] = [NoByteMore, *([SmallDisk] if can_mount() else [])]


@pytest.fixture(params=FULL_DISKS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk | NoByteMore]:
    """A disk that can be filled, where the state of the agent will lie."""
    made: SmallDisk | NoByteMore = request.param(tmp_path / "state")
    yield made
    made.remove()


def test_an_agent_whose_disk_is_full_refuses_in_a_sentence_and_works_again_when_there_is_room(
    disk: SmallDisk | NoByteMore, tmp_path: Path
) -> None:
    with Broker() as broker:
        device = RealDevice(broker, tmp_path)
        try:
            disk.fill(device)
            device.give("full", make_artifact())
            refusal = device.hear(Refusal, Update)
            assert isinstance(refusal, Refusal)
            assert "free some space" in refusal.detail
            device.say(Ack("full"))
            device.answers()
            disk.empty(device)
            device.does_an_honest_task()
        finally:
            device.end()
