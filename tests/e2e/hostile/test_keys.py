"""Keys and certificates against real processes: tokens over TLS, signed updates, a broker that hears of revocations."""

import subprocess
import sys
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from fedwright.cli.main import main
from fedwright.device_runtime.enrol import enroll_at
from fedwright.protocol.errors import FedwrightError, LinkError
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import _free_port
from fedwright.protocol.link.security import Bundle, read_bundle
from fedwright.server_runtime.config import FleetSection
from fedwright.server_runtime.fleet.authority import Authority
from fedwright.server_runtime.fleet.tokens import Tokens
from fedwright.server_runtime.fleet.trust import enroll, revoke
from fedwright.server_runtime.transport.own_broker import own_broker
from helpers.data_files import save_points
from helpers.links import wait_until
from helpers.present import present
from helpers.tools import require_tool

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CONFIG = """
[run]
name = "night"
rounds = 2
[fleet]
devices = 2
port = {port}
trust = "trust"
join_timeout_s = 120
deadline_s = 60
[model]
model = "mlp"
[method]
name = "fedavg"
"""


@pytest.fixture
def port() -> int:
    require_tool("mosquitto")
    return _free_port()


def is_let_in(bundle: Bundle) -> bool:
    try:
        connect(bundle.info.broker, client_id=bundle.info.device, tls=bundle.tls()).close()
    except LinkError:
        return False
    return True


def test_devices_with_keys_of_their_own_complete_a_run(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"mqtts://127.0.0.1:{port}"
    assert main(["server", "enroll", "pi-1", "pi-2", "--token", "--broker", url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if " --token " in line]
    listener = subprocess.Popen(
        [sys.executable, "-m", "fedwright", "server", "enroll", "--listen", str(_free_port())],
        stdout=subprocess.PIPE,
        text=True,
    )
    with ExitStack() as stack:
        stack.callback(listener.wait)
        stack.callback(listener.terminate)
        stack.enter_context(present(listener.stdout))
        serves = present(listener.stdout).readline().split(" on port ")[1].partition(";")[0]
        for line in lines:
            assert main(["device", "enroll", "--server", f"127.0.0.1:{serves}", "--token", line[-1]]) == 0
        with pytest.raises(LinkError, match="unknown or was used before"):
            enroll_at(f"127.0.0.1:{serves}", lines[0][-1], tmp_path / "thief")

    (tmp_path / "run.toml").write_text(CONFIG.format(port=port))
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "fedwright", "server", "run", "run.toml"], stdout=log, stderr=log
        )
    devices = []
    for seed, device in enumerate(("pi-1", "pi-2")):
        save_points(tmp_path / f"{device}.npz", seed=seed)
        words = ["device", "run", "--bundle", device, "--data", f"npz:{device}.npz", "--state", "state", "--once"]
        bundle = read_bundle(tmp_path / device)
        wait_until(partial(is_let_in, bundle))
        with (tmp_path / f"{device}.log").open("wb") as log:
            devices.append(subprocess.Popen([sys.executable, "-m", "fedwright", *words], stdout=log, stderr=log))

    assert server.wait(180) == 0, (tmp_path / "server.log").read_text()
    assert [device.wait(60) for device in devices] == [0, 0]
    assert "2 updates" in (tmp_path / "server.log").read_text()


def test_a_listener_of_another_authority_never_hears_the_secret(port: int, tmp_path: Path) -> None:
    from threading import Thread

    from fedwright.server_runtime.fleet.enrolment_service import EnrolmentService
    from fedwright.server_runtime.fleet.trust import secure_broker

    ours, stranger = (Authority.create(tmp_path / name) for name in ("ours", "stranger"))
    secure_broker(stranger, fleet="default", hosts=["127.0.0.1"])
    token = Tokens(ours).offer("pi-1", fleet="default", broker=f"mqtts://127.0.0.1:{port}")
    with EnrolmentService(stranger, port=0) as service:
        thread = Thread(target=service.serve_forever)
        thread.start()
        try:
            with pytest.raises(FedwrightError, match="not the authority that made this token"):
                enroll_at(f"127.0.0.1:{service.server_port}", token, tmp_path / "pi-1")
        finally:
            service.shutdown()
            thread.join()

    assert not (tmp_path / "pi-1").exists()


def test_the_servers_own_broker_hears_of_enrolments_and_revocations(port: int, tmp_path: Path) -> None:
    url = f"mqtts://127.0.0.1:{port}"
    trust = tmp_path / "trust"
    assert main(["server", "enroll", "pi-1", "--broker", url, "--trust", str(trust)]) == 0
    authority = Authority(trust)
    with own_broker(FleetSection(trust=str(trust), port=port), tmp_path / "broker"):
        first = read_bundle(trust / "devices" / "pi-1")
        assert is_let_in(first)
        later = read_bundle(enroll(authority, "pi-2", fleet="garden", broker=url))
        with closing(connect(url, client_id="pi-2", tls=later.tls())):
            revoke(authority, "pi-1")
            wait_until(lambda: not is_let_in(first))

        with pytest.raises(LinkError, match=r"revoked"):
            connect(url, client_id="pi-1", tls=first.tls())
        assert is_let_in(later)
