"""Several servers of one run over PostgreSQL and S3: when one is killed or falls silent, another goes on."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from fedwright.cli.main import main
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.rounds.audit import check_audit
from fedwright.server_runtime.rounds.store.postgres import schema_name
from helpers.data_files import save_points
from helpers.links import wait_until
from helpers.postgres import PostgresServer, running_postgres
from helpers.resume import state_of
from helpers.s3 import BUCKET, SECRET, running_s3
from helpers.served import PATIENT, served_config, start_agents

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ROUNDS = 12


class Server:
    """`fedwright server run` in a process of its own whose words go into a file."""

    def __init__(self, folder: Path, number: int) -> None:
        self._file = folder / f"server-{number}.txt"
        command = [sys.executable, "-m", "fedwright", "server", "run", "run.toml"]
        with self._file.open("wb") as file:
            self.process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        """All that it has said so far."""
        return self._file.read_text()


def holder_after(database: PostgresServer, rounds: int) -> int:
    """The process that serves once so many rounds are closed."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{schema_name("night")}"')

        def closed() -> bool:
            row = connection.execute("SELECT COUNT(*) FROM closed").fetchone()
            return row is not None and row[0] >= rounds

        wait_until(closed, timeout_s=200)
        row = connection.execute("SELECT holder FROM lease").fetchone()
        assert row is not None
        return int(row[0].split()[0])


def test_another_server_goes_on_when_the_first_is_killed_or_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stack: ExitStack
) -> None:
    monkeypatch.chdir(tmp_path)
    database = stack.enter_context(running_postgres())
    s3 = stack.enter_context(running_s3(tmp_path))
    s3.enter(monkeypatch)
    broker = stack.enter_context(Broker())
    fleet = stack.enter_context(EmulatedFleet(tmp_path / "logs"))
    more = f'[store]\nrounds = "{database.url}"\nblobs = "s3://{BUCKET}/runs"\nfetch = "https"\n[track]\nto = ["jsonl"]'
    # Small chunks make the model a large blob.
    lasting = served_config(broker.url, rounds=ROUNDS, fleet=f"{PATIENT}\nchunk_kib = 1", more=more)
    (tmp_path / "run.toml").write_text(lasting)
    (tmp_path / "alone.toml").write_text(served_config(broker.url, name="alone", rounds=ROUNDS))
    for seed, device in enumerate(("a", "b")):
        save_points(tmp_path / f"{device}.npz", seed=seed)

    servers: dict[int, Server] = {}
    for shown in ("waiting for 2", "standing by: server", "standing by: server"):
        server = stack.enter_context(Server(tmp_path, len(servers)))
        wait_until(lambda server=server, shown=shown: shown in server.said(), timeout_s=120)  # type: ignore[misc]
        servers[server.process.pid] = server
    first = next(iter(servers))
    start_agents(fleet, broker.url, tmp_path, {"a": "npz:a.npz", "b": "npz:b.npz"})
    holder_after(database, 2)
    os.kill(first, signal.SIGKILL)
    # Another one wakes up when its run is long over.
    second = holder_after(database, 4)
    os.kill(second, signal.SIGSTOP)
    [third] = servers.keys() - {first, second}
    assert servers[third].process.wait(200) == 0, servers[third].said()
    os.kill(second, signal.SIGCONT)
    # It stands by again, and finds that there is nothing left to do.
    assert servers[second].process.wait(100) == 0
    assert main(["server", "run", "alone.toml"]) == 0
    capsys.readouterr()
    assert main(["server", "status", "runs/night"]) == 0

    assert "has taken this run over" in servers[second].said()
    assert f"{ROUNDS} of {ROUNDS} rounds, complete" in capsys.readouterr().out
    assert state_of(tmp_path / "runs/night") == state_of(tmp_path / "runs/alone")
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    assert s3.reads_by_range() >= 2 * ROUNDS
    audit = check_audit(tmp_path / "runs/night")
    assert (audit.problem, audit.torn) == ("", False)
    # Whoever was at work told of its rounds; one that was killed in between may have left one to be told again.
    told = [json.loads(line) for line in (tmp_path / "runs/night/track/rounds.jsonl").read_text().splitlines()]
    assert {line["round"] for line in told if "seconds" in line} == set(range(1, ROUNDS + 1))
