"""HyperFLoRA over a real broker with real agents: variants, bystanders and a base that travels once, through kills."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.agent import Agent
from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Report, Stats, Task
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds.store.base import Position, evaluation_after
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run import RunOutcome
from fedwright.simulation.dealing import deal
from helpers.fleet import Running
from helpers.present import present
from helpers.resume import Links, execute, final_state, simulated_state
from helpers.simulation import local_data, make_config

ROUNDS, ADAPTER, BASE = 3, 586, 21_546
VARIANTS: dict[str, dict[str, Any]] = {
    "pairs": {"exchanges": 2},
    "no pairs": {"pairs": False},
    "sequential": {"exchanges": 1, "sequential": True},
    "head": {"exchanges": 1, "head": True},
}


class Small(Agent):
    """A device that has next to no memory left."""

    def _send(self, message: Any, **how: Any) -> None:
        less = structs.replace(message, free_bytes=1000) if isinstance(message, Report) else message
        super()._send(less, **how)


def configured(folder: Path, **method: Any) -> tuple[RunConfig, str]:
    return make_config(
        folder,
        rounds=ROUNDS,
        method={"name": "hyperflora", "pretrain_rounds": 1, **method},
        model={"model": "cnn-lora"},
        fleet={"devices": 4},
        simulate={"devices": 4, "bystanders": 1, "rows": 200, "evaluate_every": 0},
    )


def live(config: RunConfig, text: str, folder: Path, *, kills: tuple[int, ...] = (), **changes: Any) -> RunOutcome:
    """A run over a broker whose last device declares itself a bystander; the server dies at these updates."""
    data = local_data(deal(config.simulate, seed=config.run.seed))
    with Broker() as broker, ExitStack() as stack:
        links = Links(broker.url)
        for device, own in data.items():
            more = {"trains": device != "device-3", **changes.get(device, {})}
            stack.callback(Running(links, device, folder / "devices", data=own, **more).stop)
        return execute(config, text, links, kills=kills)


def planned_and_stats(folder: Path) -> list[tuple[str, Position, Task, Stats]]:
    """(device, stage, task, what the device measured) of the whole run, in order."""
    store = SqliteRoundStore(folder / "run/rounds.sqlite")
    try:
        positions = [*(closed.position for closed in store.closed()), evaluation_after(ROUNDS)]
        return [
            (planned.device, position, planned.task, present(store.replies(position)[planned.task.task].update).stats)
            for position in positions
            for planned in present(store.plan(position))
        ]
    finally:
        store.close()


@pytest.mark.broker
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_killed_server_goes_on_to_the_bytes_of_the_simulation(tmp_path: Path, variant: str) -> None:
    config, text = configured(tmp_path / "mqtt", **VARIANTS[variant])
    # within pre-training, then among the adapters of the second round, then on a pair's way where there are pairs
    outcome = live(config, text, tmp_path, kills=(2, 3, 2))

    assert final_state(tmp_path / "mqtt") == simulated_state(config, text, tmp_path / "simulated")
    assert {device: record.rounds for device, record in outcome.devices.items()} == {
        "device-0": 3,
        "device-1": 3,
        "device-2": 3,
        "device-3": 0,
    }


@pytest.mark.broker
def test_bystanders_only_ever_get_a_merged_model_and_the_base_travels_once(tmp_path: Path) -> None:
    config, text = configured(tmp_path / "mqtt", exchanges=2)
    outcome = live(config, text, tmp_path, **cast(Any, {"device-2": {"make_agent": Small}}))
    seen = planned_and_stats(tmp_path / "mqtt")

    # one says that it does not train, the other has no memory for it: both get one task, to evaluate
    for bystander in ("device-2", "device-3"):
        own = [task for device, _, task, _ in seen if device == bystander]
        assert [task.recipe.epochs for task in own] == [0]
        assert own[0].frozen is None
        sent = tensors.load(BlobStore(tmp_path / "mqtt/run/blobs").path(own[0].weights.sha256))
        assert "head.weight" in sent
        assert not any("lora" in name for name in sent)
        assert outcome.devices[bystander].accuracy_after is not None
    # the second round brings the base and adapters, the third adapters alone
    rounds = [one for one in seen if not one[1].is_evaluation]
    bytes_down = {
        number: max(stats.bytes_down for device, at, _, stats in rounds if device == "device-0" and at.round == number)
        for number in (1, 2, 3)
    }
    assert bytes_down[2] - bytes_down[1] > 4 * BASE
    assert bytes_down[3] - bytes_down[2] < 4 * BASE / 2
    frozen = {present(task.frozen).sha256 for _, at, task, _ in rounds if at.round > 1}
    assert len(frozen) == 1


@pytest.mark.broker
def test_a_pairs_adapter_is_relayed_through_the_server(tmp_path: Path) -> None:
    config, text = configured(tmp_path / "mqtt", exchanges=2)
    live(config, text, tmp_path)
    seen = planned_and_stats(tmp_path / "mqtt")

    for number in (2, 3):
        later = [one for one in seen if one[1].round == number and one[1].stage > 0 and not one[1].is_evaluation]
        hops = [(at.stage, device, task) for device, at, task, _ in later]
        # three devices make one pair, each of which has two turns unless it lacks the drawn classes
        assert [stage for stage, _, _ in hops] == [1, 2, 3, 4]
        assert len({device for _, device, _ in hops}) <= 2
        assert all(task.recipe.classes and task.recipe.epochs == 1 for _, _, task in hops)
        sizes = {task.weights.size_bytes for _, _, task in hops}
        assert max(sizes) < 4 * ADAPTER + 1000
    assert np.isfinite([stats.train_s for *_, stats in seen]).all()
