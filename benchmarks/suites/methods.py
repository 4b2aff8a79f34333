"""The suite methods: every method of the registry on the same devices and data, at equal budgets of parameters."""

import argparse
from collections.abc import Mapping
from typing import Any

from fedwright.benchmarks.harness.suite import (
    Finished,
    Job,
    check,
    mean,
    merged,
    paired_row,
    read_suite,
    run_jobs,
    seeds_of,
)
from fedwright.benchmarks.suites.sizes_fashion import by_size
from fedwright.server_runtime.methods.registry import METHODS

BASE = "fedavg"


def run(args: argparse.Namespace) -> dict[str, Any]:
    """One table of all methods, one of paired differences to FedAvg, one of accuracy by round."""
    found = read_suite("methods", quick=args.quick)
    seeds = seeds_of(found["suite"], args.seeds)
    jobs = [Job(name, seed, job_config(found, name)) for seed in seeds for name in found["methods"]]
    finished = run_jobs(jobs)
    runs = {name: [job for job in finished if job.name == name] for name in found["methods"]}
    shares = [float(share) for share in found["sizes"]["shares"]]
    rows = sorted((_row(name, own, shares) for name, own in runs.items()), key=lambda row: -float(row["mean"]))
    lacking = sorted(METHODS.keys() - runs.keys())
    return {
        "seeds": seeds,
        "tables": {
            "all methods at equal budgets: accuracy in percent of each device's own model on its own data": rows,
            f"accuracy in points above {BASE}, paired seeds": [
                _paired(name, own, runs[BASE]) for name, own in runs.items() if name != BASE
            ],
            "mean accuracy in percent, by round": _curves(runs),
        },
        "checks": [check("methods of the registry that were left out", len(lacking), "== 0", holds=not lacking)],
    }


def job_config(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The config of one method's simulation."""
    params = dict(found["methods"][name])
    model = params.pop("model", found["config"]["model"]["model"])
    suite = found["suite"]
    return merged(
        found["config"],
        {
            "run": {"rounds": suite["rounds"]},
            "model": {"model": model},
            "method": {"name": name, **params},
            "simulate": {"devices": suite["devices"], "rows": suite["rows"]},
        },
    )


def _row(name: str, own: list[Finished], shares: list[float]) -> dict[str, Any]:
    figures = {figure: 100 * mean(job.curve("test", figure)[-1] for job in own) for figure in ("mean", "worst", "p10")}
    sizes = [by_size(job, len(shares)) for job in own]
    records = [record for job in own for record in job.devices.values()]
    per_round = [(r.bytes_up + r.bytes_down) / max(1, r.rounds) for r in records]
    return {
        "method": name,
        **figures,
        **{f"{share:.3g}": 100 * mean(found[level] for found in sizes) for level, share in enumerate(shares)},
        "kB per round": mean(per_round) / 1e3,
        "device MB": mean(record.need_bytes for record in records) / 1e6,
        "server s": mean(job.server_s for job in own),
    }


def _paired(name: str, own: list[Finished], base: list[Finished]) -> dict[str, Any]:
    ours, theirs = ([100 * job.curve("test", "mean")[-1] for job in jobs] for jobs in (own, base))
    return {"method": name, **paired_row(ours, theirs)}


def _curves(runs: Mapping[str, list[Finished]]) -> list[dict[str, Any]]:
    rounds = [entry.round for entry in next(iter(runs.values()))[0].evaluations if entry.part == "test"]
    return [
        {"round": number}
        | {name: 100 * mean(job.curve("test", "mean")[at] for job in own) for name, own in runs.items()}
        for at, number in enumerate(rounds)
    ]
