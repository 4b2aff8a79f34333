"""How long a run stands still when the server that leads it is killed: three servers over PostgreSQL and S3.

Each has a folder of its own, as on hosts of their own.
"""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from fedwright.benchmarks.harness.engines import BUCKET, PostgresServer, S3Server, running_postgres
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.device import agent_command
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.protocol.errors import RoundError
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.rounds.store.postgres import schema_name
from fedwright.server_runtime.run_folder.blobs import open_blobs
from fedwright.server_runtime.run_folder.folder import RunFolder
from fedwright.server_runtime.run_folder.rounds import open_rounds

KILLS, QUICK_KILLS = 50, 4
MOST_S = 10.0
SERVERS = 3
ROUNDS_BETWEEN = 2
LOG = "server.log"
# Rounds go on while a server that was started anew comes to stand by; an order ends the run when all kills are done.
MOST_ROUNDS, ROUNDS_LEFT = 100_000, 200
PATIENCE_S = 300.0


def take_overs(*, quick: bool, kills: int | None = None) -> dict[str, Any]:
    """Seconds until another server leads and until it has closed a round; whether the end has the same bytes."""
    kills = kills if kills is not None else QUICK_KILLS if quick else KILLS
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database, s3 = stack.enter_context(running_postgres()), stack.enter_context(S3Server(place))
        broker = stack.enter_context(Broker())
        fleet = stack.enter_context(EmulatedFleet(place / "logs"))
        _start_agents(fleet, broker.url, place)
        store = f'[store]\nrounds = "{database.url}"\nblobs = "s3://{BUCKET}/runs"'
        trial = _Trial(place, {**os.environ, **s3.environment()}, database)
        stack.callback(trial.close)
        rows, rounds = trial.kill_leaders(_config(broker.url, "killed", MOST_ROUNDS, store), kills)
        killed = trial.last
        alone = trial.start(_config(broker.url, "alone", rounds, ""), "alone")
        alone.wait(PATIENCE_S)
        os.environ.update(s3.environment())
        same = _end_of(killed / "runs/killed") == _end_of(trial.last / "runs/alone")
    return _result(rows, same=same)


class _Trial:
    def __init__(self, place: Path, environment: dict[str, str], database: PostgresServer) -> None:
        self._place, self._environment, self._database = place, environment, database
        self._servers: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()

    def start(self, config: str, name: str) -> "subprocess.Popen[bytes]":
        """A server of a run in a process of its own, on a host of its own as far as its files go."""
        host = self._place / f"host-{len(self._servers)}"
        host.mkdir()
        (host / f"{name}.toml").write_text(config)
        command = [sys.executable, "-m", "fedwright", "server", "run", f"{name}.toml"]
        with (host / LOG).open("wb") as log:
            process = subprocess.Popen(command, cwd=host, env=self._environment, stdout=log, stderr=log)
        self._servers.append(process)
        return process

    @property
    def last(self) -> Path:
        """The host of the server that was started last."""
        return self._place / f"host-{len(self._servers) - 1}"

    def kill_leaders(self, config: str, kills: int) -> tuple[list[dict[str, Any]], int]:
        """Kill whoever leads, so often, with others ready to take over; then let the run end, after so many rounds."""
        for _ in range(SERVERS):
            self.start(config, "killed")
        rows = []
        for number in range(1, kills + 1):
            self._wait_for(self._others_stand_by)
            since = self._closed()
            self._wait_for(lambda since=since: self._closed() >= since + ROUNDS_BETWEEN)  # type: ignore[misc]
            leader, closed = self._leader(), self._closed()
            began_s = time.monotonic()
            os.kill(leader, signal.SIGKILL)
            self._killed.add(leader)
            self._wait_for(lambda leader=leader: self._leader() != leader)  # type: ignore[misc]
            led_s = time.monotonic() - began_s
            self._wait_for(lambda closed=closed: self._closed() > closed)  # type: ignore[misc]
            rows.append({"kill": number, "led again s": led_s, "round closed s": time.monotonic() - began_s})
            self.start(config, "killed")
        self._wait_for(self._others_stand_by)
        rounds = self._closed() + ROUNDS_LEFT
        order = [sys.executable, "-m", "fedwright", "server", "ctl", "runs/killed", "rounds", str(rounds)]
        # From the host of the server that was started last, whoever leads.
        subprocess.run(order, cwd=self.last, env=self._environment, check=True, capture_output=True)
        self._wait_for(lambda: self._closed() >= rounds)
        return rows, rounds

    def _others_stand_by(self) -> bool:
        """Whether all servers but the one that leads wait for their turn."""
        said = (self._said(number) for number in range(len(self._servers)))
        return sum(text.count("standing by: ") for text in said) >= len(self._servers) - 1

    def _said(self, number: int) -> str:
        return (self._place / f"host-{number}" / LOG).read_text()

    def _wait_for(self, holds: Callable[[], bool]) -> None:
        """RoundError when nobody goes on, or when a server ended that nobody killed."""
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            for number, server in enumerate(self._servers):
                if server.poll() is not None and server.pid not in self._killed:
                    last = " ".join(self._said(number).splitlines()[-3:])
                    raise RoundError(f"server {number} ended by itself, exit code {server.returncode}: {last}")
            if time.monotonic() > until_s:
                raise RoundError(f"no server went on with the run within {PATIENCE_S:.0f} s")
            time.sleep(0.05)

    def close(self) -> None:
        """End all servers."""
        for process in self._servers:
            process.kill()
            process.wait()

    def _leader(self) -> int:
        found = self._row("SELECT holder FROM lease")
        return int(found.split()[0]) if found else 0

    def _closed(self) -> int:
        return int(self._row("SELECT COUNT(*) FROM closed") or 0)

    def _row(self, query: str) -> Any:
        with psycopg.connect(self._database.url, autocommit=True) as connection:
            try:
                connection.execute(f'SET search_path TO "{schema_name("killed")}"'.encode())
                row = connection.execute(query.encode()).fetchone()
            except psycopg.errors.UndefinedTable:
                return None
            return None if row is None else row[0]


def _start_agents(fleet: EmulatedFleet, broker: str, place: Path) -> None:
    for number in range(2):
        rng = np.random.default_rng(number)
        x, y = rng.normal(size=(80, 8)).astype(np.float32), rng.integers(0, 3, 80)
        np.savez(place / f"{number}.npz", x=x + y[:, None], y=y)
        data, device = f"npz:{place / str(number)}.npz", f"d{number}"
        config = AgentConfig(broker=broker, device=device, data=data, state=place / "state", threads=1)
        fleet.start(device, "laptop", agent_command(config))


def _config(broker: str, name: str, rounds: int, store: str) -> str:
    fleet = f'broker = "{broker}"\ndevices = 2\njoin_timeout_s = 120\ndeadline_s = 120'
    run = f'[run]\nname = "{name}"\nrounds = {rounds}'
    return f'{run}\n[fleet]\n{fleet}\n[model]\nmodel = "mlp"\n{store}\n[method]\nname = "fedavg"\n'


def _end_of(path: Path) -> str:
    """A hash of the last state of a run, with how many of its tasks failed."""
    with closing(open_rounds(RunFolder(path))) as store:
        record = store.run()
        if record is None:
            raise RoundError(f"{path} holds no run")
        config = config_from_text(record.config, where=str(path))
        state = open_blobs(RunFolder(path), config, record).read(store.closed()[-1].state)
        return hashlib.sha256(state).hexdigest()


def _result(rows: list[dict[str, Any]], *, same: bool) -> dict[str, Any]:
    slowest = max(row["led again s"] for row in rows)
    checks = [
        {"name": "slowest take-over, s", "value": slowest, "target": f"<= {MOST_S:g}", "holds": slowest <= MOST_S},
        {"name": f"same bytes after {len(rows)} kills", "value": int(same), "target": "= 1", "holds": same},
    ]
    return {"tables": {"kills of the leading server": rows}, "checks": checks, "notes": []}
