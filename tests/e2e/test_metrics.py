"""Debian's Prometheus scrapes a server, an edge and a device while a run goes on over a real broker."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from urllib.error import URLError

import pytest

from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.device import agent_command
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.protocol.link.broker import Broker
from helpers.data_files import save_points
from helpers.links import wait_until
from helpers.scrape import ask, fetch, free_port, scrape_config
from helpers.served import served_config
from helpers.tools import REPO, require_tool

pytestmark = [pytest.mark.broker, pytest.mark.slow]

# More than are played: the run is stopped when everything was seen.
ROUNDS = 5000
WAIT_S = 120.0
EDGE = '[edge]\nname = "edge-1"\nfolder = "edges"\n[host]\nbroker = "{broker}"\n[metrics]\nlisten = "{port}"\n'
COMMAND = [sys.executable, "-m", "fedwright", "server"]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that has seen two rounds of a run."""
    program, folder = require_tool("prometheus"), tmp_path_factory.mktemp("metrics")
    ports = {name: free_port() for name in ("server", "edge", "device", "prometheus")}
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).chdir(folder)
        broker = stack.enter_context(Broker())
        (folder / "run.toml").write_text(served_config(broker.url, rounds=ROUNDS))
        (folder / "edge.toml").write_text(EDGE.format(broker=broker.url, port=ports["edge"]))
        targets = {f"fedwright-{name}": f"127.0.0.1:{ports[name]}" for name in ("server", "edge", "device")}
        (folder / "prometheus.yml").write_text(scrape_config(targets))
        serve = [*COMMAND, "run", "run.toml", "--metrics-port", str(ports["server"])]
        place = [f"--web.listen-address=127.0.0.1:{ports['prometheus']}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        commands = [serve, [*COMMAND, "edge", "edge.toml"], [program, "--config.file=prometheus.yml", *place]]
        for number, command in enumerate(commands):
            stack.callback(end, begin(command, folder / f"{number}.log"))
        fleet = stack.enter_context(EmulatedFleet(folder / "logs"))
        for seed, (device, home) in enumerate({"a": "default", "b": "edge-1"}.items()):
            save_points(folder / f"{device}.npz", seed=seed)
            config = AgentConfig(broker.url, device, f"npz:{device}.npz", fleet=home, state=folder / "state", threads=1)
            asked = replace(config, metrics=str(ports["device"])) if device == "a" else config
            fleet.start(device, "laptop", agent_command(asked))
        address = f"http://127.0.0.1:{ports['prometheus']}"
        wait_until(lambda: rounds_seen(address) >= 2, timeout_s=WAIT_S)
        yield address


def begin(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def rounds_seen(address: str) -> float:
    """How many rounds Prometheus knows of, with a first word of everybody else."""
    with suppress(URLError, ConnectionError, AssertionError):
        found = ask(address, "fedwright_rounds_completed")
        # A rate needs two scrapes of each.
        rates = ask(address, "rate(process_cpu_seconds_total[1m])")
        return float(found[0]["value"][1]) if found and len(rates) == 3 else 0.0
    return 0.0


def test_everybody_is_scraped(prometheus: str) -> None:
    up = {row["metric"]["job"]: row["value"][1] for row in ask(prometheus, "up")}

    assert up == {"fedwright-server": "1", "fedwright-edge": "1", "fedwright-device": "1"}


def test_the_run_is_known_by_its_devices_and_rounds(prometheus: str) -> None:
    devices = {row["metric"]["device"] for row in ask(prometheus, "fedwright_device_updates_total > 0")}
    [taken] = ask(prometheus, 'fedwright_tasks_total{outcome="accepted"}')
    [info] = ask(prometheus, "fedwright_run_info")
    [edge] = ask(prometheus, "fedwright_edge_devices")
    [agent] = ask(prometheus, 'fedwright_agent_tasks_total{outcome="done"}')

    assert devices == {"a", "b"}
    assert float(taken["value"][1]) >= 4
    assert (info["metric"]["run"], info["metric"]["method"]) == ("night", "fedavg")
    assert edge["value"][1] == "1"
    assert float(agent["value"][1]) >= 1


def test_every_panel_of_the_dashboard_is_understood_and_most_have_something_to_show(prometheus: str) -> None:
    panels = json.loads((REPO / "deploy" / "grafana-dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    known = {expression: ask(prometheus, plain(expression)) for expression in asked}

    # No board here has a temperature, certificates, or a device that is gone.
    empty = {expression for expression, found in known.items() if not found}
    assert {expression for expression in empty if not excused(expression)} == set()


def plain(expression: str) -> str:
    """As Grafana fills it in."""
    return expression.replace("$instance", ".*").replace("$__rate_interval", "1m")


def excused(expression: str) -> bool:
    return any(word in expression for word in ("temperature", "certificate", "last_seen", "predicted"))


def test_everybody_is_ready(prometheus: str) -> None:
    for row in ask(prometheus, "up"):
        assert fetch(f"http://{row['metric']['instance']}/readyz") == (200, "ok\n")
