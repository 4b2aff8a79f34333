"""The suite bytes: what may be left out of updates and models, and what that costs in accuracy, on three data sets."""

import argparse
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

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
    summary,
)
from fedwright.server_runtime import zoo
from fedwright.server_runtime.methods.base import Method
from fedwright.simulation.dealing import Dealt

Runs = Mapping[tuple[str, str], list[Finished]]
PLAIN = "float32"
FLOAT_BYTES = 4
BOTH_WAYS = 2


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    found = read_suite("bytes", quick=args.quick)
    seeds = seeds_of(found["suite"], args.seeds)
    done = run_jobs(jobs_of(found, seeds))
    runs = {
        (data, form): [job for job in done if job.name == name_of(data, form)]
        for data in found["data"]
        for form in found["forms"]
    }
    rounds = int(found["suite"]["rounds"])
    tables: dict[str, Any] = {
        f"{data}: accuracy in percent and bytes of {rounds} rounds": [
            row_of(form, runs[data, form], runs[data, PLAIN], rounds) for form in found["forms"]
        ]
        for data in found["data"]
    }
    tables |= {
        f"{data}: accuracy in percent by kB of a device so far": curve(runs, data, found, rounds)
        for data in found["data"]
    }
    return {"seeds": seeds, "tables": tables, "checks": checks(runs, found, rounds)}


def jobs_of(found: Mapping[str, Any], seeds: list[int]) -> list[Job]:
    """Every form on every data set, with the same seeds."""
    suite = found["suite"]
    scale = {
        "run": {"rounds": suite["rounds"]},
        "fleet": {"devices": suite["devices"]},
        "simulate": {"devices": suite["devices"], "rows": suite["rows"]},
    }
    return [
        Job(
            name_of(data, form),
            seed,
            merged(found["config"], scale, sections, {"update": {"evaluate": False, **update}}),
            watch=Parameters,
        )
        for seed in seeds
        for data, sections in found["data"].items()
        for form, update in found["forms"].items()
    ]


def name_of(data: str, form: str) -> str:
    """What a job is called."""
    return f"{data}, {form}"


class Parameters:
    """Counts the numbers of the model that a device is sent."""

    def __init__(self, job: Job, dealt: Dealt) -> None:
        self._device = sorted(dealt.shares)[0]
        self._count = 0

    def __call__(self, method: Method, number: int) -> None:
        """Look at the method after a round."""
        if not self._count:
            spec, weights = method.model_of(self._device)
            names = zoo.create(spec, seed=0).state_dict()
            self._count = sum(int(np.size(value)) for name, value in weights.items() if name in names)

    def seen(self) -> dict[str, Any]:
        """How many they are."""
        return {"parameters": self._count}


def plain_bytes(job: Finished, rounds: int) -> float:
    """What a device's rounds take as plain float32 both ways, as other frameworks send them."""
    return float(FLOAT_BYTES * BOTH_WAYS * rounds * int(job.seen["parameters"]))


def device_bytes(job: Finished) -> tuple[float, float]:
    """Bytes up and down of the mean device over the whole run."""
    records = list(job.devices.values())
    return mean(record.bytes_up for record in records), mean(record.bytes_down for record in records)


def accuracy(job: Finished) -> float:
    """Of the mean device in percent, over the last three measurements, so that one lucky round decides nothing."""
    return 100 * mean(summary(entry)["mean"] for entry in job.on("test")[-3:])


def share(job: Finished, rounds: int) -> float:
    """Bytes both ways, as a share of what plain float32 takes."""
    return sum(device_bytes(job)) / plain_bytes(job, rounds)


def row_of(form: str, own: list[Finished], plain: list[Finished], rounds: int) -> dict[str, Any]:
    """A form's accuracy beside float32's, and what it sends."""
    pairs = paired_row([accuracy(job) for job in own], [accuracy(job) for job in plain])
    return {
        "form": form,
        "accuracy": mean(accuracy(job) for job in own),
        "less float32's": pairs["difference"],
        "error": pairs["error"],
        "up kB": mean(device_bytes(job)[0] for job in own) / 1e3,
        "down kB": mean(device_bytes(job)[1] for job in own) / 1e3,
        "of plain float32": mean(share(job, rounds) for job in own),
    }


def curve(runs: Runs, data: str, found: Mapping[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Accuracy at growing bytes: of each form where it stands when its mean device has sent and got so many."""
    rows = []
    most = max(mean(sum(device_bytes(job)) for job in runs[data, form]) for form in found["forms"])
    for step in range(12, -1, -1):
        spent = most / math.sqrt(2) ** step
        row: dict[str, Any] = {"kB": spent / 1e3}
        for form in found["forms"]:
            row[form] = at_bytes(runs[data, form], spent, rounds)
        rows.append(row)
    return rows


def at_bytes(jobs: list[Finished], spent: float, rounds: int) -> float | None:
    """Accuracy at the last measurement that this many bytes pay for; None where they pay for none."""
    found = []
    for job in jobs:
        per_round = sum(device_bytes(job)) / rounds
        paid = [entry for entry in job.on("test") if entry.round * per_round <= spent]
        if not paid:
            return None
        found.append(100 * summary(paid[-1])["mean"])
    return mean(found)


def checks(runs: Runs, found: Mapping[str, Any], rounds: int) -> list[dict[str, Any]]:
    """What the promised form takes and loses, on each data set."""
    promised, rows = found["promised"], []
    for data in found["data"]:
        own = row_of(promised["form"], runs[data, promised["form"]], runs[data, PLAIN], rounds)
        taken, lost = own["of plain float32"], -own["less float32's"]
        most, points = promised["share"], promised["points"]
        rows += [
            check(f"bytes, share of plain float32: {data}", taken, f"<= {most}", holds=taken <= most),
            check(f"accuracy lost in points: {data}", lost, f"<= {points}", holds=lost <= points),
        ]
    return rows
