"""HASA over a real broker with devices that hide their counts: the server gets the sum, and never sees a count."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedwright.protocol import codec, topics
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Report, SumAnswer
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.methods.base import MethodState
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run import RunOutcome
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import simulate
from helpers.resume import Links, final_state
from helpers.simulation import local_data, make_config, run_hiding_agents

HASA = {"name": "hasa", "budget": 0.6, "most": 1.0, "least": 0.4, "secure_sum": True}
FLEET = {"devices": 4}
DATA = {"rows": 200, "evaluate_every": 0, "hide_counts": True}


class Spy:
    """Hears everything that devices say to the server."""

    def __init__(self, links: Links) -> None:
        self.payloads: list[bytes] = []
        self._link = links.link("spy")
        self._link.subscribe(topics.up_all("test"))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            received = self._link.receive(0.2)
            if received is not None:
                self.payloads.append(bytes(received.payload))

    def close(self) -> list[Any]:
        """All messages that were heard."""
        self._over.set()
        self._thread.join()
        self._link.close()
        return [codec.decode(payload).body for payload in self.payloads]


def notes(folder: Path) -> dict[str, Any]:
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        answer: dict[str, Any] = msgspec.json.decode(MethodState.read(store.notes(Position(1, 0))).records["roster"])
        return answer
    finally:
        store.close()


def widths(outcome: RunOutcome) -> dict[str, float]:
    return {device: record.width for device, record in outcome.devices.items()}


def spellings(counts: tuple[int, ...]) -> list[bytes]:
    """The counts as messages, notes or arrays would hold them."""
    return [
        msgspec.msgpack.encode(list(counts)),
        msgspec.json.encode(list(counts)),
        *(np.array(counts, kind).tobytes() for kind in ("<i8", "<f4", "<f8", "<i4")),
    ]


def run_over_mqtt(config: RunConfig, text: str, folder: Path, data: dict[str, Any]) -> tuple[RunOutcome, list[Any]]:
    """The run's outcome and all that its devices said."""
    with Broker() as broker:
        links = Links(broker.url)
        spy = Spy(links)
        with run_hiding_agents(links, folder, data):
            link = links.link("server")
            try:
                return runs.execute(config, text, link=link), spy.close()
            finally:
                link.close()


@pytest.mark.broker
def test_the_server_sees_the_sum_and_no_count(tmp_path: Path) -> None:
    config, text = make_config(tmp_path / "mqtt", rounds=1, method=HASA, fleet=FLEET, simulate=DATA)
    data = local_data(deal(config.simulate, seed=config.run.seed))
    outcome, said = run_over_mqtt(config, text, tmp_path / "devices", data)

    plain = np.sum([own.class_counts for own in data.values()], axis=0)
    assert notes(tmp_path / "mqtt")["summed"]["pooled"] == plain.tolist()
    assert sum(isinstance(body, SumAnswer) for body in said) >= 6 * len(data)
    reports = [body for body in said if isinstance(body, Report)]
    assert {(r.data.class_counts, r.data.score_counts, r.data.descriptor) for r in reports} == {(None, None, None)}
    stored = [path.read_bytes() for path in (tmp_path / "mqtt").rglob("*") if path.is_file()]
    heard = [msgspec.msgpack.encode(body) for body in said]
    for own in data.values():
        assert not any(spelling in blob for spelling in spellings(own.class_counts) for blob in stored + heard)
    # The search would find them: the sum is there, in one of these spellings.
    assert any(spelling in blob for spelling in spellings(tuple(plain.tolist())) for blob in stored)

    elsewhere = replace(config, run=replace(config.run, folder=str(tmp_path / "simulated")))
    simulated = simulate(elsewhere, text)
    assert final_state(tmp_path / "mqtt") == final_state(tmp_path / "simulated")
    assert widths(outcome) == widths(simulated.outcome)


def test_widths_are_those_of_counts_in_the_open(tmp_path: Path) -> None:
    hidden = make_config(tmp_path / "hidden", rounds=1, method=HASA, fleet=FLEET, simulate=DATA)
    seen = make_config(
        tmp_path / "open",
        rounds=1,
        method={**HASA, "secure_sum": False},
        fleet=FLEET,
        simulate={**DATA, "hide_counts": False},
    )
    found = [simulate(config, text) for config, text in (hidden, seen)]
    told, plain = (widths(one.outcome) for one in found)
    # Scores are told in 64 steps.
    assert told == pytest.approx(plain, abs=0.03)
    assert len(set(told.values())) > 1


def test_devices_behind_edges_take_part(tmp_path: Path) -> None:
    straight = make_config(tmp_path / "straight", rounds=1, method=HASA, fleet=FLEET, simulate=DATA)
    edged = make_config(tmp_path / "edged", rounds=1, method=HASA, fleet=FLEET, simulate={**DATA, "edges": 2})
    found = [simulate(config, text) for config, text in (straight, edged)]
    assert widths(found[0].outcome) == widths(found[1].outcome)
    assert notes(tmp_path / "edged")["summed"] == notes(tmp_path / "straight")["summed"]


def test_devices_that_hide_nothing_cannot_take_part(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, method=HASA, fleet=FLEET, simulate={**DATA, "hide_counts": False})
    with pytest.raises(ConfigError, match=r"takes part in no sums of counts; start it with --hide-counts \(in a sim"):
        simulate(config, text)


def test_hidden_counts_without_a_secure_sum_are_explained(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, method={**HASA, "secure_sum": False}, fleet=FLEET, simulate=DATA)
    with pytest.raises(ConfigError, match=r"reports no class counts to score.*or set method.secure_sum = true"):
        simulate(config, text)


def test_a_secure_sum_needs_counts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="secure_sum adds up counts but score is 'pixels'"):
        make_config(tmp_path, method={**HASA, "score": "pixels"})
