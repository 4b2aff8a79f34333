"""What a broker lets through is found out by trying, and the doctor says what to do about it."""

from typing import Any

import pytest

from fedwright.device_runtime import broker_limits
from fedwright.device_runtime.broker_limits import BrokerLimits, find_limits
from fedwright.protocol.link import Link
from fedwright.protocol.link.memory import MemoryBroker


class Narrow:
    """A broker in memory that drops what is too large or too deep."""

    def __init__(self, *, most_bytes: int = 10**9, levels: int = 100) -> None:
        self._broker, self._most_bytes, self._levels = MemoryBroker(), most_bytes, levels

    def link(self) -> Link:
        """A connection."""
        link = self._broker.link("doctor")
        send = link.send

        def narrow(topic: str, payload: bytes, **more: Any) -> None:
            if len(payload) <= self._most_bytes and len(topic.split("/")) <= self._levels:
                send(topic, payload, **more)

        link.send = narrow  # type: ignore[method-assign]
        return link


@pytest.mark.parametrize(
    ("broker", "found"),
    [
        pytest.param(Narrow(), (1024, 16), id="no limit"),
        pytest.param(Narrow(most_bytes=128 * 1024), (120, 16), id="128 KiB"),
        pytest.param(Narrow(levels=8), (1024, 8), id="eight levels"),
        pytest.param(Narrow(most_bytes=0), (0, 0), id="nothing"),
    ],
)
def test_limits_are_found(broker: Narrow, found: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_limits, "WAIT_S", 0.3)

    limits = find_limits(broker.link, "pi")

    assert limits == BrokerLimits(*found, version=0)
    assert limits.echoes == bool(found[0])
