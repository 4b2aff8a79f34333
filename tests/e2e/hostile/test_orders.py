"""Orders that are forged, kept and sent again, or come from a clock that is wrong, to a real enrolled agent."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from fedwright.protocol import codec
from fedwright.protocol.link import connect
from fedwright.protocol.messages import Dismiss
from fedwright.server_runtime.fleet.authority import Authority
from fedwright.server_runtime.fleet.trust import enroll, enroll_server
from helpers.links import closed_broker
from helpers.real_device import RealDevice
from helpers.tiny_artifact import make_artifact

pytestmark = [pytest.mark.broker, pytest.mark.slow]

DAY_S = 86400.0


def test_an_order_of_two_days_ahead_blocks_nothing_and_no_forged_or_old_one_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, stranger = (Authority.create(tmp_path / name) for name in ("trust", "stranger"))
    with (
        closed_broker(authority, "default") as broker,
        closing(connect(broker.url, client_id="server", tls=enroll_server(authority))) as link,
    ):
        bundle = enroll(authority, "a", fleet="default", broker=broker.url)
        device = RealDevice(broker, tmp_path, further=("--bundle", str(bundle)), link=link, sign=authority.sign)
        try:
            with monkeypatch.context() as patch:
                patch.setattr("fedwright.protocol.codec.time.time", lambda now=time.time: now() + 2 * DAY_S)
                kept = device.give("ahead", make_artifact())
            device.did("ahead")
            # Somebody holds this one back, and brings it when the server has said something else.
            with monkeypatch.context() as patch:
                patch.setattr(device, "send", lambda payload: None)
                withheld = device.give("withheld", make_artifact())
            device.does_an_honest_task()
            for sign, boot in ((None, device.boot), (stranger.sign, device.boot), (authority.sign, "another life")):
                leave = Dismiss(boot, "misfit", "leave")
                device.send(codec.encode(leave, sender="server", boot="s", sign=sign, order=codec.Order(9, 9)))
            device.send(kept)
            device.send(withheld)
            device.does_an_honest_task()
            assert device.process.poll() is None
        finally:
            device.end()
    assert "dismiss is not signed" in device.log
    assert device.log.count("task ahead begins") == 1
    assert "task withheld begins" not in device.log
