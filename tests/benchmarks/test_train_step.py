"""What `bench train-step` makes of measured rows, and how a peer that cannot be measured is named."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.benchmarks.peers import runtimes
from fedwright.benchmarks.suites import train_step
from fedwright.protocol.errors import ConfigError


def _row(model: str, threads: int, ours: float, **peers: float) -> dict[str, Any]:
    row: dict[str, Any] = {"model": model, "threads": threads, "portable_cpu_ms": ours, "peak_ratio": 0.2}
    row |= {f"{peer}_cpu_ms": time for peer, time in peers.items()}
    return row | {"cpu_ratio": ours / peers["torch"], "wall_ratio": 1.5}


def test_checks_take_the_best_peer_the_mean_over_models_and_the_wall_time_of_two_threads() -> None:
    rows = [
        _row("lenet", 1, 10.0, torch=20.0, jax=8.0),
        _row("lenet", 2, 12.0, torch=12.0),
        _row("resnet8", 1, 20.0, torch=10.0),
    ]

    checks = {check["name"]: check for check in train_step._step_checks(rows)}

    assert checks["CPU time / best peer: lenet, 1 thread"]["value"] == 1.25
    assert checks["CPU time / best peer: resnet8, 1 thread"]["value"] == 2.0
    assert checks["CPU time / torch: geometric mean, 1 thread"]["value"] == 1.0
    assert checks["wall time / torch: lenet, 2 threads"] == {
        "name": "wall time / torch: lenet, 2 threads",
        "value": 1.5,
        "target": "<= 1.0",
        "holds": False,
    }


def test_a_peer_that_fails_is_named_once_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def fail(kind: str, folder: Path, seconds: float, *, timeout_s: float) -> dict[str, Any]:
        asked.append(kind)
        raise ConfigError("cannot be installed here: no such package")

    monkeypatch.setattr(runtimes, "measure", fail)
    plan = train_step.Plan(seconds=0.0, passes=2, threads=(1,), peers=("jax",))
    row: dict[str, Any] = {}
    reasons: dict[str, str] = {}

    for _ in range(plan.passes):
        train_step._measure_peers(row, tmp_path, plan, reasons)

    assert asked == ["jax"]
    assert reasons == {"jax": "cannot be installed here: no such package"}
    assert row == {}


@pytest.mark.parametrize(
    ("models", "peers", "said"),
    [(["lenett"], (), "unknown model 'lenett'"), (["lenet"], ("tvm",), "unknown peer 'tvm'")],
    ids=["model", "peer"],
)
def test_unknown_names_are_refused_before_anything_is_measured(
    models: list[str], peers: tuple[str, ...], said: str
) -> None:
    plan = train_step.Plan(seconds=0.0, passes=1, threads=(1,), peers=peers)

    with pytest.raises(ConfigError, match=said):
        train_step._check_names(models, plan)
