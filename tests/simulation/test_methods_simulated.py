"""Every registered method learns digits in a simulation, with submodels that the devices can train."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.server_runtime.methods.registry import METHODS
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.events import TaskFailed
from fedwright.simulation.dealing import Dealt, deal
from fedwright.simulation.simulate import Simulated, simulate
from helpers.simulation import make_config

# Methods with sizes get ones that a model this small can have.
PARAMS: dict[str, dict[str, Any]] = {
    "heterofl": {"levels": {"sizes": [1.0, 0.5]}},
    "fedrolex": {"levels": {"sizes": [1.0, 0.5]}},
    "fiarse": {"sizes": [1.0, 0.5]},
    # The papers' steps are meant for thousands of rounds.
    "pfedhn": {"server_rate": 0.06, "momentum": 0.0, "parallel": True},
    "framp": {"sizes": [1.0, 0.25]},
    "hyperflora": {"pretrain_rounds": 2, "exchanges": 1},
    "adapters-private": {"pretrain_rounds": 2},
    "hasa": {"budget": 0.6, "most": 1.0, "least": 0.4},
    "per-fedavg": {"inner_rate": 0.05},
    "pfedme": {"strength": 1.0, "rate": 1.0, "inner_steps": 2},
}
# They do without momentum, or step in groups.
TRAIN: dict[str, dict[str, Any]] = {
    "per-fedavg": {"learning_rate": 0.3},
    "pfedme": {"learning_rate": 0.2},
    "scaffold": {"learning_rate": 0.3},
}


def run(folder: Path, method: str, **changes: Any) -> Simulated:
    """A short simulation of a method on the model it is meant for."""
    model = METHODS[method].model
    train = {"batch": 16, "learning_rate": 0.05, "epochs": 3, "optimizer": {"momentum": 0.9}}
    config, text = make_config(
        folder,
        rounds=3,
        model={"model": model},
        train={**train, **TRAIN.get(method, {})},
        method={"name": method, **PARAMS.get(method, {}), **changes},
        public={"rows": 60 if METHODS[method].needs_public else 0},
    )
    return simulate(config, text)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_method_learns(tmp_path: Path, method: str) -> None:
    found = run(tmp_path, method)

    records = found.outcome.devices.values()
    assert all(record.rounds == 3 for record in records)
    accuracy = [np.mean([device.accuracy for device in entry.devices]) for entry in found.evaluations]
    assert accuracy[-1] > max(0.2, float(np.mean([record.accuracy_before for record in records])) + 0.05)


def test_widths_are_those_of_the_devices(tmp_path: Path) -> None:
    widths = {d: record.width for d, record in run(tmp_path, "heterofl").outcome.devices.items()}
    assert widths == {"device-0": 1.0, "device-1": 0.5, "device-2": 1.0, "device-3": 0.5}


def test_hasa_reports_the_budget_it_realised(tmp_path: Path) -> None:
    found = run(tmp_path, "hasa", tolerance=1e-4)
    assert found.outcome.metrics[-1]["budget"] == pytest.approx(0.6, abs=1e-3)
    assert len({record.width for record in found.outcome.devices.values()}) > 1


@pytest.mark.parametrize("score", ["pixels", "features"])
def test_hasa_scores_what_simulated_devices_tell(tmp_path: Path, score: str) -> None:
    method = {"name": "hasa", "budget": 0.5, "least": 0.25, "most": 1.0, "score": score}
    simulated = {"rows": 160, "devices": 3, "evaluate_every": 0}
    config, text = make_config(tmp_path, rounds=1, method=method, fleet={"devices": 3}, simulate=simulated)
    found = simulate(config, text)
    assert len({record.width for record in found.outcome.devices.values()}) == 3


def skewed(dealt: Dealt) -> Dealt:
    """Every device has 400 rows of one class, one of the next and 30 of the one after that."""
    shares = {}
    for rank, (device, share) in enumerate(dealt.shares.items()):
        of_class = [np.flatnonzero(dealt.y == (rank + step) % dealt.classes) for step in range(3)]
        rows = [np.resize(found, count) for found, count in zip(of_class, (400, 1, 30), strict=True)]
        shares[device] = replace(share, train=np.concatenate(rows))
    return replace(dealt, shares=shares)


@pytest.mark.parametrize("update", [{"codec": "int8"}, {"keep_ratio": 0.2}], ids=str)
@pytest.mark.parametrize("method", ["framp", "fedgh"])
def test_class_means_of_skewed_data_are_taken_however_changes_travel(
    tmp_path: Path, method: str, update: dict[str, Any]
) -> None:
    config, text = make_config(
        tmp_path,
        rounds=1,
        model={"model": METHODS[method].model},
        method={"name": method, **PARAMS.get(method, {})},
        fleet={"devices": 2},
        simulate={"rows": 600, "devices": 2, "evaluate_every": 0},
        update=update,
    )
    seen: list[events.Event] = []
    dealt = skewed(deal(config.simulate, seed=config.run.seed))
    simulate(config, text, dealt=dealt, observer=seen.append)

    assert not [event for event in seen if isinstance(event, TaskFailed)]


def test_a_limit_on_changes_leaves_class_means_as_they_are(tmp_path: Path) -> None:
    """Devices measure their means before the server holds their changes to a limit: in round 1 these are the same."""
    states = []
    for limit in (1e3, 1e-3):
        config, text = make_config(
            tmp_path / str(limit),
            rounds=1,
            model={"model": "cnn-gn"},
            method={"name": "framp", **PARAMS["framp"]},
            simulate={"rows": 160},
            update={"clip_norm": limit},
        )
        simulate(config, text, look=lambda method, number: states.append(method.state().tensors))

    loose, tight = (state["prototypes"] for state in states)
    assert loose.any()
    np.testing.assert_array_equal(tight, loose)


def test_fedprox_sends_no_more_than_fedavg(tmp_path: Path) -> None:
    sent = {}
    for method in ("fedavg", "fedprox"):
        records = run(tmp_path / method, method).outcome.devices.values()
        sent[method] = sum(record.bytes_down for record in records)

    # The graph, which goes out once, is larger by the proximal term; the weights are their own centre.
    assert sent["fedavg"] < sent["fedprox"] < 1.1 * sent["fedavg"]
