"""An enrolled edge between an enrolled host and device: TLS, access list, the host's signature end to end."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.cli.main import main
from fedwright.protocol import codec, topics
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.security import BrokerTls, read_bundle
from fedwright.protocol.messages import Gone
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.fleet.trust import Authority, enroll_server
from fedwright.server_runtime.run import execute
from helpers.fleet import WAIT_S
from helpers.tools import require_tool

EDGE = """
[edge]
name = "site"
bundle = "{bundle}"
once = true
[host]
broker = "{broker}"
fleet = "home"
"""


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An authority made by the command, with an edge and two devices behind it."""
    require_tool("mosquitto")
    monkeypatch.chdir(tmp_path)
    words = ["server", "enroll", "pi-1", "pi-2", "--edge", "site", "--broker", "mqtts://127.0.0.1:8883"]
    assert main([*words, "--fleet", "home"]) == 0
    return tmp_path / "trust"


def start(*words: Path | str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "fedwright", *map(str, words)])


@pytest.mark.broker
def test_a_round_through_an_enrolled_edge(trust: Path, tmp_path: Path) -> None:
    folder = trust / "broker"
    tls = BrokerTls(trust / "ca.pem", folder / "cert.pem", folder / "key.pem", folder / "access.list")
    rng = np.random.default_rng(0)
    with Broker(tls=tls) as broker:
        (tmp_path / "edge.toml").write_text(EDGE.format(bundle=trust / "edges/site", broker=broker.url))
        processes = [start("server", "edge", tmp_path / "edge.toml")]
        for device in ("pi-1", "pi-2"):
            np.savez(tmp_path / f"{device}.npz", x=rng.normal(size=(40, 1, 8, 8)), y=np.arange(40) % 4)
            words: list[Any] = [
                "--bundle",
                trust / "devices" / device,
                "--broker",
                broker.url,
                "--once",
                "--threads",
                1,
            ]
            words += ["--data", f"npz:{tmp_path}/{device}.npz", "--state", tmp_path / "state"]
            processes.append(start("device", "run", *words))
        config = config_from_dict(
            {
                "run": {"rounds": 2, "folder": str(tmp_path / "runs")},
                "fleet": {"name": "home", "devices": 2, "broker": broker.url, "trust": str(trust)},
                "method": {"name": "fedavg"},
            },
            where="test",
        )
        link = connect(broker.url, client_id="server", tls=enroll_server(Authority(trust)))
        outcome = execute(config, "", link=link)
        link.close()
        assert [process.wait(WAIT_S) for process in processes] == [0, 0, 0]

    assert {device: record.rounds for device, record in outcome.devices.items()} == {"pi-1": 2, "pi-2": 2}


@pytest.mark.broker
def test_the_broker_lets_an_edge_speak_only_as_itself(trust: Path) -> None:
    folder = trust / "broker"
    tls = BrokerTls(trust / "ca.pem", folder / "cert.pem", folder / "key.pem", folder / "access.list")
    with Broker(tls=tls) as broker:
        server = connect(broker.url, client_id="server", tls=enroll_server(Authority(trust)))
        server.subscribe("fedwright/home/#")
        edge = connect(broker.url, client_id="site", tls=read_bundle(trust / "edges/site").tls())
        edge.subscribe("fedwright/site/#")
        device = connect(broker.url, client_id="pi-1", tls=read_bundle(trust / "devices/pi-1").tls())
        gone = codec.encode(Gone(), sender="x", boot="b")
        refused = [(edge, topics.up("home", "pi-1")), (edge, topics.shared("home"))]
        refused += [(device, topics.up("site", "pi-2")), (device, topics.down("site", "pi-1"))]
        for link, topic in refused:
            link.send(topic, gone)
        # Messages of one sender keep their order, so what was refused would have come first.
        for sender, topic, hears in (
            (edge, topics.up("home", "site"), server),
            (device, topics.up("site", "pi-1"), edge),
        ):
            sender.send(topic, gone)
            received = hears.receive(WAIT_S)
            assert received is not None
            assert received.topic == topic
        for link in (server, edge, device):
            link.close()
