"""Several servers of one run over PostgreSQL: one serves, and another goes on when it is killed or falls silent."""

import os
import signal
from collections.abc import Callable
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
from helpers.readme import Screen, environment_of
from helpers.resume import state_of
from helpers.served import served_config, start_agents
from helpers.tools import REPO

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ROUNDS = 12


def shows(words: str) -> Callable[[str], bool]:
    """Whether a screen shows these words."""
    return lambda text: words in text


def holder_after(database: PostgresServer, rounds: int) -> int:
    """The process that serves once so many rounds are closed."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{schema_name("night")}"')

        def closed() -> bool:
            row = connection.execute("SELECT COUNT(*) FROM closed").fetchone()
            return row is not None and row[0] >= rounds

        wait_until(closed, timeout_s=60)
        row = connection.execute("SELECT holder FROM lease").fetchone()
        assert row is not None
        return int(row[0].split()[0])


def test_another_server_goes_on_when_the_first_is_killed_or_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stack: ExitStack
) -> None:
    monkeypatch.chdir(tmp_path)
    database = stack.enter_context(running_postgres())
    broker = stack.enter_context(Broker())
    fleet = stack.enter_context(EmulatedFleet(tmp_path / "logs"))
    lasting = served_config(broker.url, rounds=ROUNDS, more=f'[store]\nrounds = "{database.url}"')
    (tmp_path / "run.toml").write_text(lasting)
    (tmp_path / "alone.toml").write_text(served_config(broker.url, name="alone", rounds=ROUNDS))
    for seed, device in enumerate(("a", "b")):
        save_points(tmp_path / f"{device}.npz", seed=seed)

    environment = environment_of(tmp_path) | {"PYTHONPATH": str(REPO)}
    servers: dict[int, Screen] = {}
    for shown in ("waiting for 2", "standing by: server", "standing by: server"):
        screen = Screen("fedwright server run run.toml", folder=tmp_path, environment=environment)
        stack.callback(screen.close)
        assert shown in screen.read_until(shows(shown))
        servers[screen.process.pid] = screen
    first = next(iter(servers))
    start_agents(fleet, broker.url, tmp_path, {"a": "npz:a.npz", "b": "npz:b.npz"})
    holder_after(database, 2)
    servers[first].kill()
    # Another one wakes up when its run is long over.
    second = holder_after(database, 4)
    os.kill(second, signal.SIGSTOP)
    [third] = servers.keys() - {first, second}
    assert servers[third].end() == 0, servers[third].text
    os.kill(second, signal.SIGCONT)
    assert servers[second].end() != 0
    assert main(["server", "run", "alone.toml"]) == 0
    capsys.readouterr()
    assert main(["server", "status", "runs/night"]) == 0

    assert "has taken this run over" in servers[second].text
    assert f"{ROUNDS} of {ROUNDS} rounds, complete" in capsys.readouterr().out
    assert state_of(tmp_path / "runs/night") == state_of(tmp_path / "runs/alone")
    audit = check_audit(tmp_path / "runs/night")
    assert (audit.problem, audit.torn) == ("", False)
