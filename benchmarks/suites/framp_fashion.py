"""The suite framp-fashion: FRAMP beside FIARSE, HeteroFL, FedRolex and ScaleFL at four sizes, and on unseen devices."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.generated_views import ModelView
from fedwright.benchmarks.harness.search import form_of, tuned
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
from fedwright.server_runtime.seeds import number_of
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.worker import Part

Runs = Mapping[str, list[Finished]]
Wanted = Callable[[int], bool]

# Single measurements move by several points; the mean of the last ones does not.
LATE = 3
SIZES = 4
# Models as their method leaves them; in the end also after one more round of own training, for all methods.
PARTS: tuple[Part, ...] = ("test", "test after")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables, checks and, beside a JSON file, pictures of the suite."""
    found = read_suite("framp-fashion", quick=args.quick)
    seeds = seeds_of(found["suite"], args.seeds)
    runs = finished_runs(found, seeds)
    shares = [float(share) for share in found["sizes"]["shares"]]
    unseen = unseen_devices(found["suite"])
    rows = [row_of(label, own, shares, unseen) | paper(found["paper"], label) for label, own in runs.items()]
    result: dict[str, Any] = {
        "seeds": seeds,
        "tables": {
            "accuracy in percent, mean of the last measurements": rows,
            "share of all entries that devices of a size ever had": _coverage(runs, shares),
            "framp - other in points, paired seeds": signs(runs, unseen),
        },
        "checks": checks(runs, SIZES, unseen),
    }
    if args.json is not None:
        from fedwright.benchmarks.harness.generated_plots import draw

        result["pictures"] = draw(runs, shares, Path(args.json))
    return result


def view(job: Job, dealt: Dealt) -> ModelView:
    """What is looked at in a run."""
    return ModelView(job, dealt, SIZES)


def finished_runs(found: Mapping[str, Any], seeds: list[int]) -> dict[str, list[Finished]]:
    """All jobs of the suite, by label."""
    jobs = jobs_of(found, seeds)
    done = run_jobs(tuned("framp-fashion", jobs))
    return {label: [job for job in done if job.name == label] for label in dict.fromkeys(job.name for job in jobs)}


def search_jobs(found: Mapping[str, Any]) -> list[Job]:
    """What settings are searched for: methods; a form of one takes its method's."""
    return [job for job in jobs_of(found, [1]) if not job.form_of]


def jobs_of(found: Mapping[str, Any], seeds: list[int]) -> list[Job]:
    """Every entry of [params] as simulations over all seeds; `name` in it is the method where the label is not."""
    suite = found["suite"]
    scale = {
        "run": {"rounds": suite["rounds"]},
        "fleet": {"per_round": suite["per_round"]},
        "simulate": {key: suite[key] for key in ("devices", "bystanders", "rows") if key in suite},
    }
    jobs = []
    for seed in seeds:
        for label in suite.get("only", found["params"]):
            model = found.get("models", {}).get(label, found["config"]["model"]["model"])
            params = found["params"][label]
            own = {"method": {"name": label, **params}, "model": {"model": model}}
            jobs.append(
                Job(label, seed, merged(found["config"], scale, own), parts=PARTS, watch=view, **form_of(params))
            )
    return jobs


def unseen_devices(suite: Mapping[str, Any]) -> int:
    """The number of the first device that never trains."""
    return int(suite["devices"]) - int(suite["bystanders"])


def late(own: Finished, wanted: Wanted) -> float:
    """Mean accuracy in percent over the last measurements of the devices whose number is wanted; 0 without any."""
    values = [
        device.accuracy
        for entry in own.on("test")[-LATE:]
        for device in entry.devices
        if device.n and wanted(number_of(device.device, own.seed))
    ]
    return 100 * mean(values) if values else 0.0


def after(own: Finished, wanted: Wanted) -> float:
    """Mean accuracy in percent of the devices whose number is wanted, after own training at the end."""
    last = own.on("test after")[-1].devices
    return 100 * mean(device.accuracy for device in last if device.n and wanted(number_of(device.device, own.seed)))


def row_of(label: str, own: list[Finished], shares: list[float], unseen: int) -> dict[str, Any]:
    """Accuracy of all devices that train, by size, of those that never do, and of common models."""
    row: dict[str, Any] = {"method": label, "local": mean(late(job, lambda number: number < unseen) for job in own)}
    for level, share in enumerate(shares):
        row[f"{share:.3g}"] = mean(late(job, of_size(level, len(shares), unseen)) for job in own)
    row["unseen"] = mean(late(job, lambda number: number >= unseen) for job in own)
    if own[0].on("test after"):
        row["local after"] = mean(after(job, lambda number: number < unseen) for job in own)
        row["unseen after"] = mean(after(job, lambda number: number >= unseen) for job in own)
    unions = [mean(job.seen["union"]) for job in own if "union" in job.seen]
    row["union"] = 100 * mean(unions) if unions else None
    return row


def paper(table: Mapping[str, list[float]], label: str) -> dict[str, Any]:
    """The paper's figures for a row, where it has them."""
    names = ("paper local", "paper 1/64", "paper union")
    return dict(zip(names, table.get(label, [None] * len(names)), strict=True))


def _coverage(runs: Runs, shares: list[float]) -> list[dict[str, Any]]:
    rows = []
    for label, own in runs.items():
        if own[0].seen.get("coverage"):
            covered = {f"{s:.3g}": mean(job.seen["coverage"][n] for job in own) for n, s in enumerate(shares)}
            rows.append({"method": label, **covered})
    return rows


def of_size(level: int, sizes: int, unseen: int) -> Wanted:
    """Whether a device trains and has this size."""
    return lambda number: number < unseen and number % sizes == level


def ahead(runs: Runs, other: str, wanted: Wanted) -> list[float]:
    """How far FRAMP is above another row, for each seed."""
    pairs = zip(runs["framp"], runs[other], strict=True)
    return [late(ours, wanted) - late(theirs, wanted) for ours, theirs in pairs]


def signs(runs: Runs, unseen: int) -> list[dict[str, Any]]:
    """FRAMP against every other, seed by seed: devices of the least size, all that train, those that never do."""
    groups: dict[str, Wanted] = {
        "1/64": of_size(SIZES - 1, SIZES, unseen),
        "local": lambda number: number < unseen,
        "unseen": lambda number: number >= unseen,
    }
    rows = []
    for other in (label for label in runs if label != "framp"):
        for group, wanted in groups.items():
            ours, theirs = ([late(job, wanted) for job in runs[label]] for label in ("framp", other))
            rows.append({"other": other, "devices": group, "own training": "before", **paired_row(ours, theirs)})
            if group != "1/64":
                ours, theirs = ([after(job, wanted) for job in runs[label]] for label in ("framp", other))
                rows.append({"other": other, "devices": group, "own training": "after", **paired_row(ours, theirs)})
    return rows


def checks(runs: Runs, sizes: int, unseen: int) -> list[dict[str, Any]]:
    """FRAMP's margins at the least size."""
    found = []
    smallest = of_size(sizes - 1, sizes, unseen)
    for other, points in (("heterofl", 5.0), ("fedrolex", 20.0), ("fiarse", 0.0)):
        margin = mean(ahead(runs, other, smallest))
        found.append(check(f"framp - {other} at 1/64, points", margin, f">= {points:g}", holds=margin >= points))
    return found
