"""An enrolled fleet from the command line up: TLS, access list and signed tasks, and what is refused without them."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.cli.main import main
from fedwright.protocol import codec, topics
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.protocol.link.security import BrokerTls
from fedwright.protocol.messages import Dismiss
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.fleet.trust import Authority, enroll_server
from fedwright.server_runtime.rounds.audit import read_audit
from fedwright.server_runtime.run import RunOutcome, execute
from helpers.fleet import FLEET, WAIT_S, Running
from helpers.tools import require_tool


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A broker of an authority made by the command, and two enrolled devices."""
    require_tool("mosquitto")
    monkeypatch.chdir(tmp_path)
    assert main(["server", "enroll", "pi-1", "pi-2", "--broker", "mqtts://127.0.0.1:8883", "--fleet", "home"]) == 0
    return tmp_path / "trust"


def broker_files(trust: Path) -> BrokerTls:
    folder = trust / "broker"
    return BrokerTls(trust / "ca.pem", folder / "cert.pem", folder / "key.pem", folder / "access.list")


@pytest.mark.broker
def test_enrolled_devices_tell_what_they_learnt_in_sums_alone(trust: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("least_in_sum = 3\n")
    assert main(["server", "enroll", "pi-3", "--broker", "mqtts://127.0.0.1:8883", "--fleet", "home"]) == 0
    words = ["--policy", str(tmp_path / "policy.toml")]
    outcome = complete_rounds(trust, tmp_path, ("pi-1", "pi-2", "pi-3"), words=words, update={"secure": True})

    assert {record.rounds for record in outcome.devices.values()} == {2}
    lines = list(read_audit(tmp_path / "runs" / "run"))
    assert not [line for line in lines if line["what"] == "refused in a sum"]
    # No device has sent tensors of its own.
    assert [line["blob"] for line in lines if line["what"] == "accepted"] == [""] * 9


@pytest.mark.broker
def test_an_enrolled_fleet_completes_its_rounds(trust: Path, tmp_path: Path) -> None:
    outcome = complete_rounds(trust, tmp_path, ("pi-1", "pi-2"))

    assert {record.rounds for record in outcome.devices.values()} == {2}


def complete_rounds(
    trust: Path,
    tmp_path: Path,
    names: tuple[str, ...],
    *,
    words: Sequence[str] = (),
    update: dict[str, Any] | None = None,
) -> RunOutcome:
    """A run of two rounds over mqtts with real device processes."""
    rng = np.random.default_rng(0)
    with Broker(tls=broker_files(trust)) as broker:
        devices = []
        for device in names:
            np.savez(tmp_path / f"{device}.npz", x=rng.normal(size=(40, 1, 8, 8)), y=np.arange(40) % 4)
            line = [
                "device",
                "run",
                *words,
                "--bundle",
                str(trust / "devices" / device),
                "--broker",
                broker.url,
                "--once",
            ]
            line += ["--data", f"npz:{tmp_path}/{device}.npz", "--state", str(tmp_path / "state"), "--threads", "1"]
            devices.append(subprocess.Popen([sys.executable, "-m", "fedwright", *line]))
        config = config_from_dict(
            {
                "run": {"rounds": 2, "folder": str(tmp_path / "runs")},
                "fleet": {"name": "home", "devices": len(names), "broker": broker.url, "trust": str(trust)},
                "model": {"model": "cnn-small"},
                "method": {"name": "fedavg"},
                "update": update or {},
            },
            where="test",
        )
        link = connect(broker.url, client_id="server", tls=enroll_server(Authority(trust)))
        outcome = execute(config, "", link=link)
        link.close()
        assert {process.wait(WAIT_S) for process in devices} == {0}
    return outcome


def test_a_device_refuses_orders_that_are_not_its_servers(
    trust: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, stranger = Authority(trust), Authority.create(tmp_path / "stranger")
    broker = MemoryBroker()
    running = Running(broker, "pi-1", tmp_path, verify=lambda m, s: _verify(authority, m, s))
    link = broker.link("server")
    dismissal = Dismiss(running.boot, "misfit", "leave")

    for sign in (None, stranger.sign, authority.sign):
        payload = codec.encode(dismissal, sender="server", boot="s", sign=sign)
        link.send(topics.down(FLEET, "pi-1"), payload)
    running.thread.join(WAIT_S)
    running.stop()

    assert "leave" in str(running.error)
    assert "dismiss is not signed" in caplog.text


def _verify(authority: Authority, message: bytes, signature: bytes) -> bool:
    from fedwright.protocol.crypto.signing import verify

    return verify(authority.public_key, message, signature)


def test_a_broker_without_tls_cannot_be_enrolled_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "enroll", "pi-1", "--broker", "mqtt://host:1883", "--trust", str(tmp_path)]) == 1
    assert "need an mqtts:// address" in capsys.readouterr().err
