"""The suite methods: every method of the registry on the same devices and data, at equal budgets of parameters."""

import argparse
from collections.abc import Mapping
from typing import Any

from fedwright.benchmarks.harness.budget_views import budget_views
from fedwright.benchmarks.harness.real_fleet import link_overhead
from fedwright.benchmarks.harness.search import chosen, tuned
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
    standard_error,
)
from fedwright.benchmarks.suites.sizes_fashion import by_size
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.server_runtime.methods.shared.submodels import count_params
from fedwright.server_runtime.seeds import number_of
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.simulate import AFTER
from fedwright.simulation.worker import Part

BASE = "fedavg"
# Whose bytes and seconds are the limit: it has every size of device and sends each its part, no more.
LIMIT = "heterofl"
# Channels are whole, so a model made to a share of the parameters may be a little larger.
ROUNDING = 1.05
# Of one task beside its tensors: itself, statistics, requests for chunks, acknowledgements, its part of a report.
MESSAGES_BYTES = 16_000

Runs = Mapping[str, list[Finished]]
# Every model as the method leaves it, and after its device has trained it alone once more.
MOMENTS: tuple[Part, ...] = ("test before", "test after")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables of all methods: before and after own training, three views of budgets, paired differences, curves."""
    found = read_suite("methods", quick=args.quick)
    seeds, settings = seeds_of(found["suite"], args.seeds), chosen("methods")
    finished = run_jobs(tuned("methods", [job for seed in seeds for job in jobs_of(found, seed)]))
    runs = {name: [job for job in finished if job.name == name] for name in found["methods"]}
    shares = [float(share) for share in found["sizes"]["shares"]]
    rows = sorted((_row(name, own, shares) for name, own in runs.items()), key=lambda row: -float(row["mean"]))
    links = _links(found)
    return {
        "seeds": seeds,
        "tables": {
            "all methods at equal budgets: accuracy in percent of each device's own model on its own data": rows,
            f"three views of the same runs: all rounds, and as far as {LIMIT}'s bytes and device seconds reach": sorted(
                budget_views(runs, LIMIT), key=lambda row: -float(row["equal parameters"])
            ),
            f"accuracy in points above {BASE}, paired seeds": _paired_rows(runs),
            "mean accuracy in percent, by round": _curves(runs),
            "bytes of a task on a link, and as simulations count them": links,
            "settings": [
                {"method": name, **own.train, **{key: str(value) for key, value in own.params.items()}}
                for name, own in settings.items()
            ],
        },
        "checks": _checks(found, runs, shares, links),
    }


def search_jobs(found: Mapping[str, Any]) -> list[Job]:
    """What settings are searched for: every method."""
    return jobs_of(found, seed=1)


def jobs_of(found: Mapping[str, Any], seed: int) -> list[Job]:
    """A simulation of each method."""
    return [Job(name, seed, job_config(found, name), parts=MOMENTS) for name in found["methods"]]


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
            "simulate": {key: suite[key] for key in ("devices", "rows", "val_ratio") if key in suite},
        },
    )


def _row(name: str, own: list[Finished], shares: list[float]) -> dict[str, Any]:
    before = [100 * job.curve("test before", "mean")[-1] for job in own]
    after = [100 * job.curve("test after", "mean")[-1] for job in own]
    sizes = [by_size(job, len(shares)) for job in own]
    records = [record for job in own for record in job.devices.values()]
    per_round = [(r.bytes_up + r.bytes_down) / max(1, r.rounds) for r in records]
    return {
        "method": name,
        "mean": mean(before),
        "error": standard_error(before),
        "after own training": mean(after),
        **{figure: 100 * mean(job.curve("test before", figure)[-1] for job in own) for figure in ("worst", "p10")},
        **{f"{share:.3g}": 100 * mean(found[level] for found in sizes) for level, share in enumerate(shares)},
        "thousand entries": mean(mean(job.seen["entries"].values()) for job in own) / 1e3,
        "kB per round": mean(per_round) / 1e3,
        "device MB": mean(record.need_bytes for record in records) / 1e6,
        "server s": mean(job.server_s for job in own),
    }


def _paired_rows(runs: Runs) -> list[dict[str, Any]]:
    """Before and after own training, each against the base at the same moment."""
    rows = []
    for name, own in runs.items():
        if name == BASE:
            continue
        for part in MOMENTS:
            moment = "after" if part in AFTER else "before"
            ours, theirs = ([100 * job.curve(part, "mean")[-1] for job in jobs] for jobs in (own, runs[BASE]))
            rows.append({"method": name, "own training": moment, **paired_row(ours, theirs)})
    return rows


def _curves(runs: Runs) -> list[dict[str, Any]]:
    rounds = [entry.round for entry in next(iter(runs.values()))[0].evaluations if entry.part == "test before"]
    return [
        {"round": number}
        | {name: 100 * mean(job.curve("test before", "mean")[at] for job in own) for name, own in runs.items()}
        for at, number in enumerate(rounds)
    ]


def _links(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Real agents over a real broker, for some of the methods, beside a simulation of the same run."""
    small = {"run": {"rounds": 2, "seed": 5}, "fleet": {"devices": 3}, "simulate": {"devices": 3, "rows": 240}}
    rows = []
    with Broker() as broker:
        for name in found["links"]["methods"]:
            config = merged(job_config(found, name), small, {"public": {"rows": 30}, "train": {"epochs": 1}})
            rows.append({"method": name, **link_overhead(config, broker.url)})
    return rows


def over_budget(job: Finished, shares: list[float], whole: int, *, together: bool) -> float:
    """The most that was sent to a device, of what its size allows; together: of all devices, of all that is allowed."""
    allowed = {
        device: ROUNDING * shares[number_of(device, job.seed) % len(shares)] * whole for device in job.seen["entries"]
    }
    sent: Mapping[str, int] = job.seen["entries"]
    if together:
        return sum(sent.values()) / sum(allowed.values())
    return max(sent[device] / allowed[device] for device in sent)


def _checks(
    found: Mapping[str, Any], runs: Runs, shares: list[float], links: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    lacking = sorted(METHODS.keys() - runs.keys())
    checks = [check("methods of the registry that were left out", len(lacking), "== 0", holds=not lacking)]
    whole = count_params(ModelSpec(found["config"]["model"]["model"], (1, 28, 28), 10))
    exempt, together = found["budget"]["not_by_parameters"], found["budget"]["together"]
    for name, own in runs.items():
        if name not in exempt:
            most = max(over_budget(job, shares, whole, together=name in together) for job in own)
            checks.append(check(f"{name}: entries that devices got, of their budget", most, "<= 1", holds=most <= 1))
    for row in links:
        beyond, target = row["beyond"], f"0 to {MESSAGES_BYTES}"
        name = f"{row['method']}: bytes of a task on the link beyond those that simulations count"
        checks.append(check(name, beyond, target, holds=0 <= beyond <= MESSAGES_BYTES))
    return checks
