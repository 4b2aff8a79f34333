"""`fedwright server enroll` makes what a secured fleet needs and says what to do with it."""

import json
from pathlib import Path

import pytest

from fedwright.cli.main import main

BROKER = "mqtts://hub.example:8883"


def test_the_first_call_makes_authority_broker_and_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trust = tmp_path / "trust"

    assert main(["server", "enroll", "pi-01", "pi-02", "--broker", BROKER, "--trust", str(trust)]) == 0

    said = capsys.readouterr().out
    assert f"mosquitto -c {trust / 'broker' / 'mosquitto.conf'} on hub.example" in said
    for device in ("pi-01", "pi-02"):
        bundle = trust / "devices" / device
        assert f"{device}: copy {bundle} to the device" in said
        assert json.loads((bundle / "bundle.json").read_text())["broker"] == BROKER
    assert f'set trust = "{trust}"' in said


def test_a_later_call_keeps_authority_and_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--broker", BROKER, "--trust", str(tmp_path)]
    assert main(["server", "enroll", "pi-01", *arguments]) == 0
    kept = [(tmp_path / name).read_bytes() for name in ("ca.pem", "broker/cert.pem")]
    capsys.readouterr()

    assert main(["server", "enroll", "pi-02", *arguments]) == 0

    assert [(tmp_path / name).read_bytes() for name in ("ca.pem", "broker/cert.pem")] == kept
    assert "mosquitto -c" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "broker", "message"),
    [
        ("pi-01", "mqtt://hub.example:1883", "need an mqtts:// address"),
        ("pi/01", BROKER, "must be 1 to 64 of the characters"),
        ("server", BROKER, "would have the server's name"),
    ],
    ids=["no TLS", "bad id", "the server's name"],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str, broker: str, message: str
) -> None:
    assert main(["server", "enroll", device, "--broker", broker, "--trust", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_revoke_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", "enroll", "pi-01", "pi-02", "--broker", BROKER, "--trust", str(tmp_path)]) == 0
    capsys.readouterr()

    assert main(["server", "revoke", "pi-01", "--trust", str(tmp_path)]) == 0

    said = capsys.readouterr().out
    assert "pi-01: its certificate is void" in said
    assert "pkill -HUP mosquitto" in said
    assert (tmp_path / "revoked.list").read_text() == "pi-01\n"


def test_a_revoked_device_is_enrolled_anew_as_revoke_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    enroll = ["server", "enroll", "pi-01", "--edge", "site", "--broker", BROKER, "--trust", str(tmp_path)]
    assert main(enroll) == 0
    files = [tmp_path / "devices" / "pi-01" / "cert.pem", tmp_path / "edges" / "site" / "cert.pem"]
    before = [file.read_bytes() for file in files]
    assert main(enroll) == 1
    assert "make it void first with `fedwright server revoke pi-01`" in capsys.readouterr().err

    assert main(["server", "revoke", "pi-01", "site", "--trust", str(tmp_path)]) == 0
    assert "enroll it anew" in capsys.readouterr().out
    assert main(enroll) == 0

    assert not {file.read_bytes() for file in files} & set(before)
    assert (tmp_path / "revoked.list").read_text() == ""


@pytest.mark.parametrize(
    ("trust", "message"), [("", "made no certificate for pi-09"), ("absent", "holds no usable authority")]
)
def test_revoking_what_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trust: str, message: str
) -> None:
    assert main(["server", "enroll", "pi-01", "--broker", BROKER, "--trust", str(tmp_path)]) == 0

    assert main(["server", "revoke", "pi-09", "--trust", str(tmp_path / trust)]) == 1

    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
