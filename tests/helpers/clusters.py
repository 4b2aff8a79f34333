"""Brokers of more than one process: bridged mosquittos, and RabbitMQ with its MQTT plugin."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.engines import NotInstalled
from fedwright.benchmarks.harness.rabbit_cluster import free_port, running_rabbits
from fedwright.protocol.errors import LinkError
from fedwright.protocol.link import Link, connect
from helpers.links import wait_until
from helpers.tools import missing, require_tool

TRIES = 5


class Node:
    """One process of a broker, and the port on which it speaks MQTT."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process, self.port = process, port

    def kill(self) -> None:
        """SIGKILL to it and all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Cluster:
    """Nodes with the face of one broker; each link begins with the first node of its own list."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes

    def url(self, first: int = 0) -> str:
        """The address of all nodes, beginning with this one."""
        turned = [*self.nodes[first:], *self.nodes[:first]]
        return "mqtt://" + ",".join(f"127.0.0.1:{node.port}" for node in turned)

    def link(self, client_id: str, *, will: Any = None) -> Link:
        """The server begins with the first node, devices with the last."""
        first = 0 if client_id == "server" else len(self.nodes) - 1
        return connect(self.url(first), client_id=client_id, will=will)


@contextmanager
def bridged_mosquittos(folder: Path) -> Iterator[Cluster]:
    """Two mosquittos that tell each other everything."""
    program = require_tool("mosquitto")
    nodes: list[Node] = []
    try:
        nodes.append(_mosquitto(program, folder / "one.conf", []))
        bridge = ["connection other", f"address 127.0.0.1:{nodes[0].port}", "topic # both 1", "restart_timeout 1"]
        nodes.append(_mosquitto(program, folder / "two.conf", bridge))
        yield Cluster(nodes)
    finally:
        for node in nodes:
            node.kill()


def _mosquitto(program: str, config: Path, more: list[str]) -> Node:
    def command(port: int) -> list[str]:
        lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "set_tcp_nodelay true", *more]
        config.write_text("\n".join(lines) + "\n")
        return [program, "-c", str(config)]

    return _started(command, config.with_suffix(".log"), env=None)


@contextmanager
def running_rabbitmq(folder: Path, count: int) -> Iterator[Cluster]:
    """Nodes of RabbitMQ, as one cluster, that speak MQTT to anybody."""
    with ExitStack() as stack:
        try:
            nodes = stack.enter_context(running_rabbits(folder, count))
        except NotInstalled as err:
            missing(str(err))
        yield Cluster(nodes)


def _started(command: Any, log_file: Path, *, env: dict[str, str] | None) -> Node:
    """A node that answers; another port is tried when somebody else has taken the first meanwhile."""
    for _ in range(TRIES):
        port = free_port()
        with log_file.open("wb") as log:
            process = subprocess.Popen(command(port), stdout=log, stderr=log, env=env, start_new_session=True)
        node = Node(process, port)
        wait_until(lambda node=node: node.process.poll() is not None or _answers(node.port), timeout_s=240)  # type: ignore[misc]
        if process.poll() is None:
            return node
    raise AssertionError(f"no node came up:\n{log_file.read_text()[-2000:]}")


def _answers(port: int) -> bool:
    try:
        connect(f"mqtt://127.0.0.1:{port}", client_id="probe").close()
    except LinkError:
        return False
    return True
