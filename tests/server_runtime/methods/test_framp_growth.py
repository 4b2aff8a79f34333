"""FRAMP in a fleet that grows: newcomers differ in all they can differ in, and nobody's model jumps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.messages import DataSummary, Report, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import CheckedUpdate, MethodState
from fedwright.server_runtime.methods.framp.method import Framp
from fedwright.server_runtime.methods.framp.params import FrampParams
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting

SPEC = ModelSpec("cnn-gn", (1, 8, 8), 4)
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


def make() -> Framp:
    initial = initial_weights(zoo.create(SPEC, seed=1))
    return Framp(FrampParams(align=0.0, sizes=(1.0,)), setting(spec=SPEC, initial=initial))


def descriptors_of(count: int) -> dict[str, list[float]]:
    """Devices with mixes of classes: means of features that share most of what they are."""
    rng = np.random.default_rng(0)
    features = 5.0 + rng.normal(size=(20, 32))
    mixes = rng.dirichlet(np.full(20, 0.3), count)
    return {f"d-{number}": row.tolist() for number, row in enumerate((mixes @ features).astype(np.float32))}


def spread(rows: NDArray[Any]) -> float:
    """In how many directions rows differ: (Σ s)² / Σ s² of their squared singular values."""
    squares = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
    return float(squares.sum() ** 2 / (squares**2).sum())


def grown(method: Framp) -> dict[str, Report]:
    """Two devices train, then 48 more come; returns all reports."""
    rows = descriptors_of(50)
    everyone = {
        device: report(data=DataSummary(24, 8, [1, 8, 8], 4, class_counts=[6] * 4, descriptor=row))
        for device, row in rows.items()
    }
    first = {device: everyone[device] for device in ("d-0", "d-1")}
    assignments = method.assign(first, 1)
    for device, change in (("d-0", 0.05), ("d-1", -0.05)):
        sent = {n: np.full_like(v, change) for n, v in method.emit(device, assignments[device]).weights.items()}
        method.absorb(device, CheckedUpdate(sent, STATS, assignments[device]))
    method.advance()
    return everyone


def test_a_fleet_may_grow_from_two_to_fifty() -> None:
    """Compared with the first two for good, 48 newcomers lay on one line."""
    method = make()
    everyone = grown(method)
    before = {device: method.part(device) for device in ("d-0", "d-1")}
    method.assign(everyone, 2)
    newcomers = [device for device in everyone if device not in before]
    assert spread(method._descriptors.rows(newcomers)) > 10
    for device, weights in before.items():
        for name, value in method.part(device).items():
            np.testing.assert_allclose(value, weights[name], atol=1e-4)
    apart = np.abs(before["d-0"]["head.weight"] - before["d-1"]["head.weight"]).max()
    assert apart > 0.01


def test_a_round_planned_while_the_fleet_grew_is_resumed_alike() -> None:
    whole, resumed = make(), make()
    everyone = grown(whole)
    kept = MethodState.read(whole.state().to_bytes())
    assignments = whole.assign(everyone, 2)
    resumed.restore(kept)
    resumed.restore_planning(MethodState.read(whole.planning_state().to_bytes()))
    for method in (whole, resumed):
        for device in ("d-0", "d-7", "d-49"):
            sent = {
                name: np.full_like(value, 0.1) for name, value in whole.emit("d-0", assignments["d-0"]).weights.items()
            }
            method.absorb(device, CheckedUpdate(sent, STATS, assignments[device]))
    whole.advance()
    resumed.advance()
    for name, value in whole.state().tensors.items():
        np.testing.assert_allclose(resumed.state().tensors[name], value, atol=1e-6)
