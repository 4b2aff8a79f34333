"""The suite framp-fashion: FRAMP beside FIARSE, HeteroFL, FedRolex and ScaleFL at four sizes, and on unseen devices."""

import argparse
from collections.abc import Mapping
from typing import Any

from fedwright.benchmarks.suite import Finished, Job, check, mean, merged, read_suite, run_jobs, seeds_of
from fedwright.server_runtime.methods.sliced import number_of

Runs = Mapping[str, list[Finished]]

# Single measurements move by several points; the mean of the last ones does not.
LATE = 3


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    found = read_suite("framp-fashion", quick=args.quick)
    seeds = seeds_of(found["suite"], args.seeds)
    runs = finished_runs(found, seeds)
    shares = [float(share) for share in found["sizes"]["shares"]]
    unseen = unseen_devices(found["suite"])
    rows = [_row(label, own, shares, unseen, found["paper"]) for label, own in runs.items()]
    return {
        "seeds": seeds,
        "tables": {"accuracy in percent, mean of the last measurements": rows},
        "checks": checks(runs, len(shares), unseen),
    }


def finished_runs(found: Mapping[str, Any], seeds: list[int]) -> dict[str, list[Finished]]:
    """Every entry of [params] as simulations over all seeds; `name` in it is the method where the label is not."""
    suite = found["suite"]
    scale = {
        "run": {"rounds": suite["rounds"]},
        "fleet": {"per_round": suite["per_round"]},
        "simulate": {key: suite[key] for key in ("devices", "bystanders", "rows")},
    }
    jobs = []
    for seed in seeds:
        for label, params in found["params"].items():
            model = found.get("models", {}).get(label, found["config"]["model"]["model"])
            rounds = found.get("rounds", {}).get(label, suite["rounds"])
            own = {"method": {"name": label, **params}, "model": {"model": model}, "run": {"rounds": rounds}}
            jobs.append(Job(label, seed, merged(found["config"], scale, own)))
    done = run_jobs(jobs)
    return {label: [job for job in done if job.name == label] for label in found["params"]}


def unseen_devices(suite: Mapping[str, Any]) -> int:
    """The number of the first device that never trains."""
    return int(suite["devices"]) - int(suite["bystanders"])


def late(own: Finished, wanted: Any) -> float:
    """Mean accuracy in percent over the last measurements of the devices whose number is wanted; 0 without any."""
    values = [
        device.accuracy
        for entry in own.evaluations[-LATE:]
        for device in entry.devices
        if device.n and wanted(number_of(device.device, own.seed))
    ]
    return 100 * mean(values) if values else 0.0


def _row(
    label: str, own: list[Finished], shares: list[float], unseen: int, paper: Mapping[str, list[float]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"method": label, "local": mean(late(job, lambda number: number < unseen) for job in own)}
    for level, share in enumerate(shares):
        row[f"{share:.3g}"] = mean(late(job, _of_size(level, len(shares), unseen)) for job in own)
    row["unseen"] = mean(late(job, lambda number: number >= unseen) for job in own)
    row["paper local"], row["paper 1/64"] = paper.get(label, [0.0, 0.0])
    return row


def _of_size(level: int, sizes: int, unseen: int) -> Any:
    return lambda number: number < unseen and number % sizes == level


def checks(runs: Runs, sizes: int, unseen: int) -> list[dict[str, Any]]:
    """FRAMP's margins at the least size."""
    found = []
    smallest = _of_size(sizes - 1, sizes, unseen)
    for other, points in (("heterofl", 5.0), ("fedrolex", 20.0), ("fiarse", 0.0)):
        pairs = zip(runs["framp"], runs[other], strict=True)
        ahead = mean(late(ours, smallest) - late(theirs, smallest) for ours, theirs in pairs)
        found.append(check(f"framp - {other} at 1/64, points", ahead, f">= {points:g}", holds=ahead >= points))
    return found
