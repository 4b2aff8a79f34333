"""The broker's own limits: a session that nobody reads does not eat its memory."""

import queue
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import psutil
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import QUEUED_BYTES, Broker, mosquitto_config
from helpers.tools import require_tool

TOPIC = "fedwright/probe/pi"
MB = 1_000_000
WAIT_S = 20.0


@pytest.fixture(autouse=True)
def mosquitto() -> str:
    """It is mosquitto whose limits are tried."""
    return require_tool("mosquitto")


def test_the_configuration_bounds_what_clients_can_take() -> None:
    lines = mosquitto_config(["listener 1883"], folder=Path("relative"), durable=True).splitlines()
    options = dict(line.split(" ", 1) for line in lines)

    assert options["max_queued_bytes"] == str(QUEUED_BYTES)
    assert int(options["memory_limit"]) >= 4 * QUEUED_BYTES
    assert int(options["max_connections"]) > 0
    assert Path(options["persistence_location"]).is_absolute()
    # It is an option of the listener, and so follows it.
    assert lines.index("listener 1883") < lines.index(f"max_connections {options['max_connections']}")


def connected(broker: Any, name: Any) -> Any:
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
    there: queue.SimpleQueue[object] = queue.SimpleQueue()
    client.on_connect = lambda *rest: there.put(rest)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    there.get(timeout=WAIT_S)
    return client


def test_a_session_that_nobody_reads_does_not_fill_the_broker() -> None:
    with Broker(kind="mosquitto") as broker:
        reader = connected(broker, "reader")
        subscribed: queue.SimpleQueue[object] = queue.SimpleQueue()
        reader.on_subscribe = lambda *rest: subscribed.put(rest)
        reader.subscribe(TOPIC, qos=1)
        subscribed.get(timeout=WAIT_S)
        # It goes without a word, and its session stays.
        reader.disconnect()
        reader.loop_stop()
        writer = connected(broker, "writer")
        before_bytes = psutil.Process(broker.pid).memory_info().rss
        for _ in range(200):
            writer.publish(TOPIC, bytes(MB), qos=1).wait_for_publish(WAIT_S)
        grown_bytes = psutil.Process(broker.pid).memory_info().rss - before_bytes
        writer.disconnect()
        writer.loop_stop()

    assert grown_bytes < QUEUED_BYTES + 40 * MB


def test_a_link_that_was_closed_leaves_no_session() -> None:
    with Broker(kind="mosquitto") as broker:
        link = connect(broker.url, client_id="pi-probe")
        link.subscribe(TOPIC)
        name = link._client._client_id.decode()  # type: ignore[attr-defined]
        link.close()
        again = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        present: queue.SimpleQueue[bool] = queue.SimpleQueue()
        again.on_connect = lambda client, data, flags, *rest: present.put(flags.session_present)
        again.connect("127.0.0.1", broker.port, clean_start=False)
        again.loop_start()
        kept = present.get(timeout=WAIT_S)
        again.disconnect()
        again.loop_stop()

    assert not kept
