"""Accuracy against epsilon on Fashion-MNIST: samples hidden on the devices, and devices hidden by the server."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedwright.benchmarks.harness.suite import Finished, Job, check, mean, merged, reported, run_jobs
from fedwright.server_runtime.rounds.privacy.accounting import Release, epsilon

PLAIN = "plain"
DELTA = 1e-5
# One device more or less of a few dozen is hidden at a price; no promise is made for it.
EXAMPLE_LOSS = 12.0
Part = tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]


def accuracy_tables(found: Mapping[str, Any], seeds: Sequence[int]) -> Part:
    """Two tables of accuracy by epsilon, and what the run with noise 1 loses."""
    finished = run_jobs([job for seed in seeds for job in jobs_of(found, seed)])
    runs: dict[str, list[Finished]] = {}
    for job in finished:
        runs.setdefault(job.name, []).append(job)
    suite = found["suite"]
    plain = _accuracy(runs[PLAIN])
    examples = [
        {"noise multiplier": noise, "epsilon": _example_epsilon(runs[f"example {noise}"], noise, suite["rounds"])}
        | {"accuracy": _accuracy(runs[f"example {noise}"])}
        for noise in suite["noises"]
    ]
    central = [{"epsilon": budget, "accuracy": _accuracy(runs[f"central {budget}"])} for budget in suite["budgets"]]
    tables = {
        "each sample hidden: accuracy in percent": [
            {"noise multiplier": 0, "epsilon": "infinite", "accuracy": plain},
            *examples,
        ],
        f"each of {suite['devices']} devices hidden: accuracy in percent": [
            {"epsilon": "infinite", "accuracy": plain},
            *central,
        ],
    }
    lost = plain - _accuracy(runs["example 1.0"])
    return tables, [
        check("points lost with noise 1 on samples", lost, f"<= {EXAMPLE_LOSS:g}", holds=lost <= EXAMPLE_LOSS),
        reported("points lost with devices hidden at the largest epsilon", plain - central[-1]["accuracy"]),
    ]


def jobs_of(found: Mapping[str, Any], seed: int) -> list[Job]:
    """Without privacy, with each noise on samples, and with each budget for devices."""
    suite = found["suite"]
    scale = {
        "run": {"rounds": suite["rounds"]},
        "fleet": {"devices": suite["devices"]},
        "simulate": {"devices": suite["devices"], "rows": suite["rows"]},
    }
    base = merged(found["config"], scale)
    sections: dict[str, dict[str, Any]] = {PLAIN: {"kind": "none"}}
    for noise in suite["noises"]:
        sections[f"example {noise}"] = {"kind": "example", "noise_multiplier": noise, "delta": DELTA}
    for budget in suite["budgets"]:
        sections[f"central {budget}"] = {"kind": "central", "epsilon": budget, "delta": DELTA, "quantile": 0.5}
    return [Job(name, seed, merged(base, {"privacy": section})) for name, section in sections.items()]


def _accuracy(jobs: Sequence[Finished]) -> float:
    return 100 * mean(device.accuracy for job in jobs for device in job.evaluations[-1].devices if device.n)


def _example_epsilon(jobs: Sequence[Finished], noise: float, rounds: int) -> float:
    """Of the device with the fewest samples, for whom a step takes the largest share of them."""
    fewest = min(record.samples for job in jobs for record in job.devices.values())
    return epsilon([Release(noise, min(1.0, 32 / fewest), rounds * -(-fewest // 32))], DELTA)
