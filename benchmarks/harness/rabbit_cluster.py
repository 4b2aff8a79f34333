"""RabbitMQ with its MQTT plugin on this machine: one node, or several that are one cluster and may be killed."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedwright.benchmarks.harness.engines import NotInstalled
from fedwright.protocol.errors import LinkError
from fedwright.protocol.link import connect

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_S = 240.0
# Its name server stays while it takes a node for alive.
NAMES_S = 60.0


class RabbitNode:
    """One node, which speaks MQTT to anybody on its port; `peers`: the names of all nodes."""

    def __init__(self, folder: Path, name: str, *, peers: list[str], names_port: int) -> None:
        folder.mkdir()
        self.port, self._log = free_port(), folder / "rabbitmq.log"
        lines = [
            f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.port}",
            "mqtt.allow_anonymous = true",
            "listeners.tcp = none",
            "loopback_users = none",
            "cluster_formation.peer_discovery_backend = classic_config",
            *(f"cluster_formation.classic_config.nodes.{n} = {peer}" for n, peer in enumerate(peers, 1)),
        ]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
        self._environment = {
            **os.environ,
            "HOME": str(folder.parent),
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(names_port),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin; `wait` says when it answers."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(PROGRAM)], stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def wait(self) -> None:
        """LinkError unless it answers after a while."""
        wait_until(self._is_decided, timeout_s=START_S, what="a node of RabbitMQ")
        if self.process is None or self.process.poll() is not None:
            raise LinkError(f"a node of RabbitMQ ended by itself: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL to it and all that it started."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _is_decided(self) -> bool:
        return self.process is None or self.process.poll() is not None or self._answers()

    def _answers(self) -> bool:
        try:
            connect(f"mqtt://127.0.0.1:{self.port}", client_id="probe").close()
        except LinkError:
            return False
        return True


@contextmanager
def running_rabbits(folder: Path, count: int) -> Iterator[list[RabbitNode]]:
    """So many nodes of one cluster that have begun; gone afterwards, with Erlang's name server."""
    if not PROGRAM.exists():
        raise NotInstalled("RabbitMQ is not installed; run `make setup` as root or install its package rabbitmq-server")
    cookie = folder / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(16))
    cookie.chmod(0o400)
    names_port = free_port()
    names = [f"fedwright-{os.getpid()}-{number}@localhost" for number in range(count)]
    nodes: list[RabbitNode] = []
    try:
        for number, name in enumerate(names):
            nodes.append(RabbitNode(folder / f"node-{number}", name, peers=names, names_port=names_port))
        # Nodes that begin at the same time may each wait for another to make the cluster.
        for group in (nodes[:1], nodes[1:]):
            for node in group:
                node.start()
            for node in group:
                node.wait()
        yield nodes
    finally:
        for node in nodes:
            node.kill()
        # It leaves the group of the node that started it.
        if shutil.which("epmd"):
            wait_until(lambda: _names_are_gone(names_port), timeout_s=NAMES_S, what="Erlang's name server")


def wait_until(holds: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """LinkError when it does not come to hold."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            raise LinkError(f"{what} was waited for in vain for {timeout_s:.0f} s; see its log")
        time.sleep(0.1)


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _names_are_gone(port: int) -> bool:
    asked = subprocess.run(["epmd", "-port", str(port), "-kill"], capture_output=True, check=False)
    if asked.returncode == 0:
        return True
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
