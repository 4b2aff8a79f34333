"""Models that come as what changed: fewer bytes down, the same learning, equal ends over a link and after kills."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime.rounds.held_models import ROUNDS
from fedwright.server_runtime.rounds.store.base import Position
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import Simulated, simulate
from helpers.present import present
from helpers.resume import Killed, die_after, execute, final_state, in_folder, simulated_state
from helpers.simulation import local_data, make_config, run_agents

PATCHED = {"model_codec": "int4"}


@contextmanager
def rounds_of(folder: Path) -> Iterator[SqliteRoundStore]:
    """What a run kept."""
    with closing(SqliteRoundStore(folder / "rounds.sqlite")) as store:
        yield store


def accuracy(found: Simulated) -> float:
    """Of all devices together, at the end."""
    devices = found.evaluations[-1].devices
    return sum(device.correct for device in devices) / sum(device.n for device in devices)


def test_changes_of_the_model_take_a_fraction_and_teach_as_much(tmp_path: Path) -> None:
    found = {}
    for codec in ("float32", "int4"):
        config, text = make_config(tmp_path / codec, rounds=8, update={"model_codec": codec, "evaluate": False})
        found[codec] = simulate(config, text)
    down = {codec: sum(r.bytes_down for r in one.outcome.devices.values()) for codec, one in found.items()}

    # Eight rounds and a measurement: one model of half its size, and eight changes of about an eighth.
    assert down["int4"] < 0.26 * down["float32"]
    assert accuracy(found["int4"]) == pytest.approx(accuracy(found["float32"]), abs=0.03)


def test_agents_end_with_the_bytes_of_the_simulation(tmp_path: Path) -> None:
    config, text = make_config(tmp_path / "agents", rounds=3, update=PATCHED, simulate={"evaluate_every": 0})
    links = MemoryBroker()

    with run_agents(links, tmp_path / "devices", local_data(deal(config.simulate, seed=config.run.seed))):
        outcome = execute(config, text, links, kills=[3, 4])

    assert final_state(tmp_path / "agents") == simulated_state(config, text, tmp_path / "simulated")
    with rounds_of(tmp_path / "agents" / "run") as store:
        tasks = [planned.task for planned in present(store.plan(Position(3, 0)))]
    assert all(task.patch is not None for task in tasks)
    whole = sum(task.weights.size_bytes for task in tasks)
    # Three rounds and a measurement, of which the first alone was whole; killed servers ask again for little.
    assert sum(record.bytes_down for record in outcome.devices.values()) < 2.5 * whole


def test_a_device_that_lost_the_model_fetches_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, text = make_config(tmp_path / "agents", rounds=3, update=PATCHED, simulate={"evaluate_every": 0})
    links, lost = MemoryBroker(), []
    has = BlobStore.has

    def forgetful(store: BlobStore, sha256: str) -> bool:
        with rounds_of(tmp_path / "agents" / "run") as rounds:
            plans = [rounds.plan(Position(number, 0)) or [] for number in (2, 3)]
        bases = {planned.task.patch.base for plan in plans for planned in plan if planned.task.patch is not None}
        if "device-0" in str(store.folder) and sha256 in bases and sha256 not in lost:
            lost.append(sha256)
            store.remove(sha256)
        return has(store, sha256)

    monkeypatch.setattr(BlobStore, "has", forgetful)
    with run_agents(links, tmp_path / "devices", local_data(deal(config.simulate, seed=config.run.seed))):
        execute(config, text, links)
    monkeypatch.undo()

    assert lost
    assert final_state(tmp_path / "agents") == simulated_state(config, text, tmp_path / "simulated")


def test_an_interrupted_run_goes_on_with_the_same_patches(tmp_path: Path) -> None:
    config, text = make_config(tmp_path / "whole", rounds=4, update=PATCHED, fleet={"sample_ratio": 0.5})
    simulate(config, text)
    broken = in_folder(config, tmp_path / "cut")
    with pytest.raises(Killed):
        simulate(broken, text, observer=die_after(1, first_round=3))

    simulate(broken, text)

    assert final_state(tmp_path / "whole") == final_state(tmp_path / "cut")


def test_models_nobody_can_build_on_any_longer_are_removed(tmp_path: Path) -> None:
    config, text = make_config(tmp_path / "run", rounds=ROUNDS + 3, update=PATCHED)
    found = simulate(config, text)

    blobs = BlobStore(found.folder / "blobs")
    with rounds_of(found.folder) as store:
        weights = {
            number: {planned.task.weights.sha256 for planned in present(store.plan(Position(number, 0)))}
            for number in range(1, ROUNDS + 4)
        }
    held = {number: all(blobs.has(sha256) for sha256 in names) for number, names in weights.items()}

    assert held == {number: number > 3 for number in range(1, ROUNDS + 4)}


def test_a_model_that_does_not_change_stays(tmp_path: Path) -> None:
    rounds = 4 * ROUNDS
    config, text = make_config(tmp_path / "run", rounds=rounds, update=PATCHED, train={"learning_rate": 1e-30})
    found = simulate(config, text)

    with rounds_of(found.folder) as store:
        sent = [present(store.plan(Position(number, 0)))[0].task.weights for number in range(1, rounds + 1)]
    # What the first form left out has come by now, and the model that is sent is one that stays.
    assert sent[-1] == sent[-1 - ROUNDS]
    assert BlobStore(found.folder / "blobs").has(sent[-1].sha256)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"update": PATCHED, "fleet": {"buffer": 2}}, "asynchronous rounds models travel whole"),
        ({"update": {"model_keep_ratio": 0.5}}, "set model_codec to int8 or int4"),
    ],
    ids=["asynchronous", "whole models"],
)
def test_what_does_not_go_together_is_named(tmp_path: Path, sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_config(tmp_path, **sections)
