"""Whole rounds over both real brokers, MQTT 5 and 3.1.1, with the broker killed in the middle of a round."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.link import connect
from fedwright.protocol.link.base import Link
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime.rounds import events
from helpers.clusters import bridged_mosquittos, running_rabbitmq
from helpers.fleet import Server, agents

pytestmark = pytest.mark.broker
DEVICES = ("a", "b", "c")


class Real:
    """A real broker with the face of the one in memory."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def link(self, client_id: str, *, will: Any = None) -> Link:
        return connect(self.broker.url, client_id=client_id, will=will)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    broker = MemoryBroker()
    with agents(broker, folder, *DEVICES):
        return Server(broker, folder, devices=3, rounds=3).run().state().to_bytes()


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_a_run_outlives_its_broker_and_ends_with_the_same_bytes(kind: Any, tmp_path: Path, undisturbed: bytes) -> None:
    with Broker(kind=kind) as broker:
        real = Real(broker)

        def kill_once(event: Any) -> None:
            if isinstance(event, events.StagePlanned) and event.round == 2:
                broker.kill()
                broker.restart()

        server = Server(real, tmp_path, devices=3, rounds=3)
        with agents(real, tmp_path, *DEVICES):
            state = server.run(observer=kill_once).state().to_bytes()

    assert state == undisturbed
    assert not server.seen(events.TaskFailed)


def test_a_run_outlives_a_node_of_bridged_brokers(tmp_path: Path, undisturbed: bytes) -> None:
    with bridged_mosquittos(tmp_path) as cluster:
        server = Server(cluster, tmp_path, devices=3, rounds=3)

        def kill_the_servers_node(event: Any) -> None:
            if isinstance(event, events.StagePlanned) and event.round == 2:
                cluster.nodes[0].kill()

        with agents(cluster, tmp_path, *DEVICES):
            state = server.run(observer=kill_the_servers_node).state().to_bytes()

    assert state == undisturbed
    assert not server.seen(events.TaskFailed)


@pytest.mark.slow
def test_a_run_outlives_nodes_of_a_rabbitmq_cluster(tmp_path: Path, undisturbed: bytes) -> None:
    with running_rabbitmq(tmp_path, 3) as cluster:
        server = Server(cluster, tmp_path, devices=3, rounds=3)

        def kill_nodes(event: Any) -> None:
            # First that of the devices, and when it is back that of the server.
            if not isinstance(event, events.StagePlanned) or event.evaluation:
                return
            if event.round == 2:
                cluster.nodes[2].kill()
            elif event.round == 3:
                cluster.nodes[2].start()
                cluster.nodes[2].wait()
                cluster.nodes[0].kill()

        with agents(cluster, tmp_path, *DEVICES):
            state = server.run(observer=kill_nodes).state().to_bytes()

    assert state == undisturbed
    assert not server.seen(events.TaskFailed)
