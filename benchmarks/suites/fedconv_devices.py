"""The suite fedconv-devices: how good FedConv makes the devices' models, by its parts and by how many take part."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedwright.benchmarks.harness.fedconv_watch import GLOBAL, GlobalAccuracy
from fedwright.benchmarks.harness.search import tuned
from fedwright.benchmarks.harness.suite import (
    Finished,
    Job,
    check,
    mean,
    merged,
    paired_row,
    read_suite,
    reported,
    run_jobs,
    seeds_of,
)
from fedwright.simulation.worker import Part

CONV = "fedconv"
PARTS: tuple[Part, ...] = ("test", "test before", "test after")
Runs = Mapping[str, list[Finished]]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables of personalisation and of participation, and checks of what is the same for all forms."""
    torch.set_num_threads(1)
    found = read_suite(args.suite, quick=args.quick)
    seeds = seeds_of(found["suite"], args.seeds)
    jobs = [job for seed in seeds for job in jobs_of(found, seed)]
    runs: dict[str, list[Finished]] = {}
    for job, done in zip(jobs, run_jobs(tuned(args.suite, jobs)), strict=True):
        runs.setdefault(job.name, []).append(done)
    tables = {
        "personalisation": personal_rows(found, runs),
        "devices after own training, fedconv - other in points, paired seeds": difference_rows(found, runs),
        "participation": participation_rows(found, runs),
    }
    return {"seeds": seeds, "tables": tables, "checks": checks(found, runs)}


def jobs_of(found: Mapping[str, Any], seed: int) -> list[Job]:
    """Every form with all devices, and some methods with a part of them in each round."""
    suite, forms = found["suite"], found["forms"]
    jobs = [_job(found, label, forms[label], seed) for label in suite.get("forms", forms)]
    for share in suite["shares"]:
        for label in suite["sampled"]:
            name = f"{label}, {share:g} of the devices"
            # As many tasks in all, whoever they go to.
            change = {"run": {"rounds": round(suite["rounds"] / share)}, "fleet": {"sample_ratio": share}}
            jobs.append(_job(found, name, forms[label], seed, change))
    return jobs


def search_jobs(found: Mapping[str, Any]) -> list[Job]:
    """What settings are searched for: FedConv and the other methods."""
    labels = [CONV, *(label for label, own in found["forms"].items() if "name" in own)]
    return [_job(found, label, found["forms"][label], 1) for label in labels]


def _job(
    found: Mapping[str, Any],
    name: str,
    params: Mapping[str, Any],
    seed: int,
    change: Mapping[str, Any] | None = None,
) -> Job:
    suite = found["suite"]
    dealt = {key: suite[key] for key in ("devices", "rows", "alpha")}
    sections = {"run": {"rounds": suite["rounds"]}, "public": {"rows": suite["public"]}, "simulate": dealt}
    # A form of FedConv is its parameters with some of them changed.
    conv = "name" not in params
    method = {"name": CONV, **found["params"], **params} if conv else params
    config = merged(found["config"], sections, {"method": method}, change or {})
    fixed = tuple(params) if conv else ()
    return Job(name, seed, config, parts=PARTS, watch=GlobalAccuracy, form_of=str(method["name"]), fixed=fixed)


def figure(own: Sequence[Finished], part: Part) -> list[float]:
    """Mean accuracy of the devices in percent at the end, one for each seed."""
    return [100 * job.curve(part, "mean")[-1] for job in own]


def personal_rows(found: Mapping[str, Any], runs: Runs) -> list[dict[str, Any]]:
    """Devices' models before and after own training, at the same moment for all, and what they have of their last."""
    suite = found["suite"]
    return [
        {
            "form": label,
            "before own training": mean(figure(runs[label], "test before")),
            "after own training": mean(figure(runs[label], "test after")),
            "own model": mean(figure(runs[label], "test")),
            "global": mean(100 * job.seen[GLOBAL][-1] for job in runs[label]),
            "groups": mean(job.metrics[-1].get("groups", 0.0) for job in runs[label]) or None,
            "MB per device and round": mean(_traffic(job) for job in runs[label]),
        }
        for label in suite.get("forms", found["forms"])
    ]


def _traffic(job: Finished) -> float:
    records = job.devices.values()
    return 1e-6 * mean((record.bytes_up + record.bytes_down) / max(1, record.rounds) for record in records)


def difference_rows(found: Mapping[str, Any], runs: Runs) -> list[dict[str, Any]]:
    """FedConv against every other form, seed by seed."""
    ours = figure(runs[CONV], "test after")
    others = [label for label in found["suite"].get("forms", found["forms"]) if label != CONV]
    return [{"other": label, **paired_row(ours, figure(runs[label], "test after"))} for label in others]


def participation_rows(found: Mapping[str, Any], runs: Runs) -> list[dict[str, Any]]:
    """Accuracy by the share of devices that take part in a round."""
    rows = []
    for label in found["suite"]["sampled"]:
        named = {share: f"{label}, {share:g} of the devices" for share in found["suite"]["shares"]} | {1.0: label}
        for share, name in sorted(named.items()):
            rows.append(
                {
                    "method": label,
                    "share": share,
                    "global": mean(100 * job.seen[GLOBAL][-1] for job in runs[name]),
                    "after own training": mean(figure(runs[name], "test after")),
                }
            )
    return rows


def checks(found: Mapping[str, Any], runs: Runs) -> list[dict[str, Any]]:
    """Own training helps devices with unlike data; what the parts are worth is reported."""
    gain = mean(figure(runs[CONV], "test after")) - mean(figure(runs[CONV], "test before"))
    results = [check("fedconv, after - before own training, points", gain, "> 0", holds=gain > 0)]
    best = mean(figure(runs[CONV], "test after"))
    for label in found["suite"].get("forms", found["forms"]):
        if label != CONV:
            points = best - mean(figure(runs[label], "test after"))
            results.append(reported(f"after own training, fedconv - {label}, points", points))
    return results
