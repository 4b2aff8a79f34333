"""Rounds whose changes are seen in sums only: real coordinator, real agents, a broker in memory."""

from pathlib import Path
from typing import Any

import numpy as np

from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.secure.options import SecureOptions
from helpers.fleet import Server, agents

DEVICES = ("a", "b", "c", "d")
SECURE = SecureOptions(reach=8.0)


def weights_of(method: Method) -> dict[str, np.ndarray]:
    return method.model_of("")[1]


def run(folder: Path, **options: Any) -> tuple[Server, Method]:
    broker = MemoryBroker()
    with agents(broker, folder / "devices", *DEVICES):
        server = Server(broker, folder, devices=len(DEVICES), **options)
        return server, server.run()


def test_a_run_of_sums_ends_where_a_plain_one_does(tmp_path: Path) -> None:
    plain = weights_of(run(tmp_path / "plain")[1])
    server, method = run(tmp_path / "secure", secure=SECURE)

    for name, value in weights_of(method).items():
        # Two rounds, each off by at most n · range / 2^31 · W / w̄ and the rounding of float32.
        np.testing.assert_allclose(value, plain[name], atol=2e-6)
    assert not server.seen(events.TaskFailed)
