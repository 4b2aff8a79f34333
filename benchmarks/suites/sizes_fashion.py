"""The suite sizes-fashion: HeteroFL, FedRolex, Federated Dropout, FIARSE and ScaleFL at four sizes of submodel."""

import argparse
from collections.abc import Mapping
from typing import Any

from fedwright.benchmarks.harness.search import tuned
from fedwright.benchmarks.harness.suite import Finished, Job, check, mean, merged, read_suite, run_jobs, seeds_of
from fedwright.server_runtime.seeds import number_of
from fedwright.simulation.worker import Part

Runs = Mapping[str, list[Finished]]
# Models as their method leaves them, on rows to test on.
UNTRAINED: tuple[Part, ...] = ("test", "test before")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    found = read_suite("sizes-fashion", quick=args.quick)
    suite, seeds = found["suite"], seeds_of(found["suite"], args.seeds)
    shares = [float(share) for share in found["sizes"]["shares"]]
    finished = run_jobs(tuned("sizes-fashion", [job for seed in seeds for job in jobs_of(found, seed)]))
    runs = {method: [job for job in finished if job.name == method] for method in suite["methods"]}
    tables = {
        "accuracy in percent of devices by size, each with its own submodel": [
            _row(method, own, shares) for method, own in runs.items()
        ],
        "mean accuracy in percent, by round": _curves(runs),
    }
    return {"seeds": seeds, "tables": tables, "checks": checks(runs, shares)}


def search_jobs(found: Mapping[str, Any]) -> list[Job]:
    """What settings are searched for: every method."""
    return jobs_of(found, seed=1)


def jobs_of(found: Mapping[str, Any], seed: int) -> list[Job]:
    """A simulation of each method."""
    suite = found["suite"]
    scale = {
        "run": {"rounds": suite["rounds"]},
        "fleet": {"devices": suite["devices"], "per_round": suite["per_round"]},
        "simulate": {"devices": suite["devices"], "rows": suite["rows"]},
    }
    return [
        Job(
            method,
            seed,
            merged(found["config"], scale, {"method": {"name": method, **found["params"][method]}}),
            parts=("test", "test after"),
        )
        for method in suite["methods"]
    ]


def by_size(own: Finished, sizes: int) -> list[float]:
    """Mean accuracy of the devices of each size after the last round."""
    last = next(entry for entry in reversed(own.evaluations) if entry.part in UNTRAINED).devices
    groups: list[list[float]] = [[] for _ in range(sizes)]
    for device in last:
        if device.n:
            groups[number_of(device.device, own.seed) % sizes].append(device.accuracy)
    return [mean(group) for group in groups]


def _row(method: str, own: list[Finished], shares: list[float]) -> dict[str, Any]:
    sizes = [by_size(job, len(shares)) for job in own]
    row: dict[str, Any] = {"method": method}
    for level, share in enumerate(shares):
        row[f"{share:.3g}"] = 100 * mean(found[level] for found in sizes)
    row["mean"] = 100 * mean(job.curve("test", "mean")[-1] for job in own)
    row["after own training"] = 100 * mean(job.curve("test after", "mean")[-1] for job in own)
    row["worst"] = 100 * mean(job.curve("test", "worst")[-1] for job in own)
    sent = [record.bytes_up / max(1, record.rounds) for job in own for record in job.devices.values()]
    row["upload kB"] = mean(sent) / 1e3
    return row


def _curves(runs: Runs) -> list[dict[str, Any]]:
    rounds = [entry.round for entry in next(iter(runs.values()))[0].evaluations if entry.part == "test"]
    return [
        {"round": number}
        | {method: 100 * mean(job.curve("test", "mean")[at] for job in own) for method, own in runs.items()}
        for at, number in enumerate(rounds)
    ]


def checks(runs: Runs, shares: list[float]) -> list[dict[str, Any]]:
    """FIARSE's ordering: choosing by importance is above rolling and random windows, overall and at the least size."""
    found = []
    least = len(shares) - 1
    for other in ("fedrolex", "feddropout"):
        pairs = list(zip(runs["fiarse"], runs[other], strict=True))
        overall = 100 * mean(a.curve("test", "mean")[-1] - b.curve("test", "mean")[-1] for a, b in pairs)
        small = 100 * mean(by_size(a, len(shares))[least] - by_size(b, len(shares))[least] for a, b in pairs)
        found.append(check(f"fiarse - {other}, mean accuracy in points", overall, "> 0", holds=overall > 0))
        found.append(check(f"fiarse - {other} at {shares[least]:.3g}, points", small, "> 0", holds=small > 0))
    pairs = list(zip(runs["heterofl"], runs["fedrolex"], strict=True))
    nested = 100 * mean(by_size(a, len(shares))[least] - by_size(b, len(shares))[least] for a, b in pairs)
    found.append(check(f"heterofl - fedrolex at {shares[least]:.3g}, points", nested, "> 0", holds=nested > 0))
    return found
