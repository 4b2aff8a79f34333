"""The suite hasa-cifar: HASA's rules on CIFAR-10 with a score of pixels, and the global model at one common width."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedwright.benchmarks.harness.generated_views import accuracy, load, one_thread
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
from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.allocation import realised_budget
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.methods.hasa import Hasa
from fedwright.simulation.dealing import Dealt

COMMON = 0.5
BUDGET_TOLERANCE = 0.02

Runs = Mapping[str, list[Finished]]


@dataclass
class CommonWidth:
    """After every measured round: accuracy of the global model at one width, on the test rows of all devices."""

    dealt: Dealt
    found: list[float] = field(default_factory=list)

    def __call__(self, method: Method, number: int) -> None:
        """Look at the method after a round."""
        assert isinstance(method, Hasa)
        rows = np.concatenate([share.test for share in self.dealt.shares.values()])
        spec = zoo.scaled(method.setting.spec, COMMON)
        with one_thread():
            model = load(spec, method.submodel("", spec, ()))
            self.found.append(accuracy(model, self.dealt.x[rows], self.dealt.y[rows]))

    def seen(self) -> dict[str, Any]:
        """One figure per measured round."""
        return {"common": self.found}


def watch(job: Job, dealt: Dealt) -> CommonWidth:
    """What is looked at in a run."""
    return CommonWidth(dealt)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    found = read_suite("hasa-cifar", quick=args.quick)
    suite, seeds = found["suite"], seeds_of(found["suite"], args.seeds)
    scale = {"run": {"rounds": suite["rounds"]}, "simulate": {"rows": suite["rows"]}}
    jobs = [
        Job(rule, seed, merged(found["config"], scale, {"method": {"rule": rule}}), parts=("val", "test"), watch=watch)
        for seed in seeds
        for rule in suite["rules"]
    ]
    finished = run_jobs(jobs)
    runs = {rule: [job for job in finished if job.name == rule] for rule in suite["rules"]}
    return {
        "seeds": seeds,
        "tables": {
            "accuracy in percent at the round that validation rows choose, beside the paper's Table V": [
                row(rule, own, found["paper"].get(rule)) for rule, own in runs.items()
            ],
            "hasa against, in points of mean accuracy": [
                {"rule": rule} | paired_row(figures(runs["hasa"], "mean"), figures(own, "mean"))
                for rule, own in runs.items()
                if rule != "hasa"
            ],
        },
        "checks": checks(runs, budget=float(found["config"]["method"]["budget"])),
    }


def chosen(own: Finished) -> int:
    """The measurement with the best mean accuracy on validation rows; test rows choose nothing."""
    return int(np.argmax(own.curve("val", "mean")))


def figures(own: list[Finished], name: str) -> list[float]:
    """A test figure of every seed at its chosen round, in percent."""
    return [100 * job.curve("test", name)[chosen(job)] for job in own]


def row(rule: str, own: list[Finished], paper: list[float] | None) -> dict[str, Any]:
    """Mean and worst device at their own widths, the global model at the common width, and when."""
    columns = ("mean", "worst")
    found: dict[str, Any] = {"rule": rule} | {name: mean(figures(own, name)) for name in columns}
    found["global at 0.5"] = 100 * mean(job.seen["common"][chosen(job)] for job in own)
    tests = [entry.round for entry in own[0].evaluations if entry.part == "test"]
    found["round"] = mean(tests[chosen(job)] for job in own)
    found["budget of squares"] = spent(own[0])
    if paper is not None:
        found |= dict(zip(("paper mean", "paper worst", "paper global"), paper, strict=True))
    return found


def spent(own: Finished) -> float:
    """Σ (n_i / N) r_i² of the widths that devices were given."""
    records = list(own.devices.values())
    return realised_budget([record.width for record in records], [record.samples for record in records], power=2)


def checks(runs: Runs, *, budget: float) -> list[dict[str, Any]]:
    """The budget; that training went on behind the round that was chosen; the orderings only as figures."""
    found = []
    for rule, own in runs.items():
        used = spent(own[0])
        close = abs(used - budget) <= BUDGET_TOLERANCE
        found.append(check(f"realised budget of squares, {rule}", used, f"{budget} +- {BUDGET_TOLERANCE}", holds=close))
        left = min(len(job.curve("val", "mean")) - 1 - chosen(job) for job in own)
        found.append(check(f"measurements behind the chosen one, {rule}", left, ">= 1", holds=left >= 1))
    for rule in runs:
        if rule != "hasa":
            margin = mean(figures(runs["hasa"], "mean")) - mean(figures(runs[rule], "mean"))
            found.append(reported(f"hasa - {rule}, mean accuracy in points", margin))
    return found
