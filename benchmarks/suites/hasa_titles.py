"""The suite hasa-titles: who should get the wide models? HASA's rules on Medium titles, over paired seeds."""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedwright.benchmarks.harness.search import tuned
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
from fedwright.device_runtime.describe.word_counts import UNKNOWN
from fedwright.server_runtime.blocks.allocation import realised_budget
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.evaluate.metrics import LstmCost
from fedwright.simulation.dealing import deal

FIGURES = {"mean": "mean", "worst": "worst", "p10": "p10", "weighted_mean": "by size", "perplexity": "PPL"}
BUDGET_TOLERANCE = 0.01
SELECTIVE = "selective, "

Runs = Mapping[str, list[Finished]]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables, curves and checks of the suite."""
    found = read_suite("hasa-titles", quick=args.quick)
    suite, seeds = found["suite"], seeds_of(found["suite"], args.seeds)
    jobs = [job for seed in seeds for job in jobs_of(found, seed)]
    finished = run_jobs(tuned("hasa-titles", jobs))
    methods = dict.fromkeys(job.name for job in jobs)
    every = {label: [job for job in finished if job.name == label] for label in methods}
    runs = {rule: every[rule] for rule in suite["rules"]}
    second = {name: every[SELECTIVE + name] for name in suite["table2"]}
    vocabulary, floor = always_unknown(found["config"]["simulate"])
    tables = {
        "accuracy on each device's test titles, in percent, beside the paper's Table I": [
            _row(rule, own, vocabulary, found["paper"].get(rule)) for rule, own in runs.items()
        ],
        "the same under selective aggregation, beside the paper's Table II": [
            _row(name, own, vocabulary, found["paper2"].get(name)) for name, own in second.items()
        ],
        "hasa - other, paired seeds": [
            row for rule, own in runs.items() if rule != "hasa" for row in _pairs(rule, runs["hasa"], own)
        ],
        "the same under selective aggregation": [
            row for name, own in second.items() if name != "hasa" for row in _pairs(name, second["hasa"], own)
        ],
        "hasa - uniform in mean accuracy (points), by round": curve(runs["hasa"], runs["uniform"]),
        "always answering <unk>, in percent": [{"mean": 100 * mean(floor), "worst": 100 * min(floor)}],
    }
    budget = float(found["config"]["method"]["budget"])
    return {"seeds": seeds, "tables": tables, "checks": checks(runs, budget=budget) + behind(every)}


def jobs_of(found: Mapping[str, Any], seed: int) -> list[Job]:
    """Every rule, and those of Table II, which run with what was searched for their rule."""
    suite = found["suite"]
    methods = {rule: {"rule": rule} for rule in suite["rules"]}
    methods |= {SELECTIVE + name: {**found["table2"][name], "aggregation": "selective"} for name in suite["table2"]}
    return [
        Job(
            label,
            seed,
            merged(found["config"], {"run": {"rounds": suite["rounds"]}, "method": own}),
            share=suite["share"],
            parts=("val", "test"),
            form_of=own["rule"],
            fixed=tuple(own),
        )
        for label, own in methods.items()
    ]


def search_jobs(found: Mapping[str, Any]) -> list[Job]:
    """What settings are searched for: every rule."""
    return [job for job in jobs_of(found, 1) if job.name == job.form_of]


def behind(runs: Runs) -> list[dict[str, Any]]:
    """That training went on behind every round that was chosen: a choice at the end might have been of a later one."""
    left = min(len(job.curve("val", "perplexity")) - 1 - chosen(job) for own in runs.values() for job in own)
    return [check("rounds behind the chosen one, least of all runs", left, ">= 1", holds=left >= 1)]


def chosen(own: Finished) -> int:
    """The measurement with the lowest perplexity on the validation titles; test titles choose nothing."""
    return int(np.argmin(own.curve("val", "perplexity")))


def figure(own: Finished, name: str) -> float:
    """A test figure at the chosen round."""
    return own.curve("test", name)[chosen(own)]


def always_unknown(section: Mapping[str, Any]) -> tuple[int, list[float]]:
    """Size of the vocabulary, and each device's accuracy of answering <unk> to everything."""
    dealt = deal(SimulateSection(**section), seed=0)
    rates = [float(np.mean(dealt.y[share.test] == UNKNOWN)) for share in dealt.shares.values() if len(share.test)]
    return dealt.classes, rates


def _row(rule: str, own: list[Finished], vocabulary: int, paper: list[float] | None) -> dict[str, Any]:
    row: dict[str, Any] = {"rule": rule}
    for name, column in FIGURES.items():
        scale = 1.0 if name == "perplexity" else 100.0
        row[column] = scale * mean(figure(job, name) for job in own)
    row["round"] = mean(chosen(job) + 1 for job in own)
    widths, samples = _widths(own[0])
    cost = LstmCost(vocabulary=vocabulary)
    row["budget"] = realised_budget(widths, samples)
    shares = np.array(samples) / sum(samples)
    row["MACs %"] = 100 * float(shares @ [cost.macs(width) for width in widths]) / cost.macs(1.0)
    row["MB up"] = 4e-6 * float(shares @ [cost.params(width) for width in widths])
    if paper is not None:
        row |= dict(zip(("paper mean", "paper worst", "paper p10"), paper, strict=True))
    return row


def _widths(own: Finished) -> tuple[list[float], list[int]]:
    records = list(own.devices.values())
    return [record.width for record in records], [record.samples for record in records]


def _pairs(rule: str, hasa: list[Finished], other: list[Finished]) -> list[dict[str, Any]]:
    rows = []
    # Of perplexity less is better, so its sign is turned: what is above zero speaks for HASA in every row.
    for name, scale, label in (("mean", 100.0, "mean"), ("worst", 100.0, "worst"), ("perplexity", -1.0, "PPL, turned")):
        ours, theirs = ([scale * figure(job, name) for job in own] for own in (hasa, other))
        rows.append({"hasa against": rule, "figure": label, **paired_row(ours, theirs)})
    return rows


def curve(hasa: list[Finished], uniform: list[Finished]) -> list[dict[str, float]]:
    """The difference after every round, mean over the seeds; it depends on when one stops, so nothing is promised."""
    a = np.array([job.curve("test", "mean") for job in hasa])
    b = np.array([job.curve("test", "mean") for job in uniform])
    points = 100 * (a - b)
    return [
        {"round": number + 1, "hasa": 100 * a[:, number].mean(), "hasa - uniform": points[:, number].mean()}
        for number in range(points.shape[1])
    ]


def checks(runs: Runs, *, budget: float) -> list[dict[str, Any]]:
    """The paper's orderings that are large enough to be seen, and the budget."""
    found = []
    for rule in ("inverse", "size"):
        if rule not in runs:
            continue
        accuracy, perplexity = (
            mean(figure(h, name) - figure(o, name) for h, o in zip(runs["hasa"], runs[rule], strict=True))
            for name in ("mean", "perplexity")
        )
        found.append(check(f"hasa - {rule}, mean accuracy in points", 100 * accuracy, "> 0", holds=accuracy > 0))
        found.append(check(f"hasa - {rule}, perplexity", perplexity, "< 0", holds=perplexity < 0))
    for rule, own in runs.items():
        spent = realised_budget(*_widths(own[0]))
        close = abs(spent - budget) <= BUDGET_TOLERANCE
        found.append(check(f"realised budget of {rule}", spent, f"{budget} +- {BUDGET_TOLERANCE}", holds=close))
    return found
