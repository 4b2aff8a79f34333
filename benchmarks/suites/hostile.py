"""The suite hostile: what 1 to 4 lying devices of 10 do to a model, by how updates are put together."""

import argparse
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import torch

from fedwright.benchmarks.harness.suite import (
    Finished,
    Job,
    check,
    mean,
    merged,
    read_suite,
    reported,
    run_jobs,
    seeds_of,
)
from fedwright.server_runtime import zoo
from fedwright.server_runtime.methods.base import Method
from fedwright.simulation.attacks import TARGET, stamped
from fedwright.simulation.dealing import Dealt

PEACE = "peace"
# What a robust choice may lose beside a run left in peace, in points.
LOSS = 3.0
Runs = Mapping[str, list[Finished]]


class BackDoor:
    """How many stamped test examples of other classes the global model takes for the attackers' class."""

    def __init__(self, job: Job, dealt: Dealt) -> None:
        rows = np.concatenate([share.test for share in dealt.shares.values()])
        rows = rows[dealt.y[rows] != TARGET]
        self._x = torch.from_numpy(stamped(dealt.x[rows]))
        self._share = 0.0
        del job

    def __call__(self, method: Method, number: int) -> None:
        """Look at the global model."""
        del number
        spec, weights = method.model_of("")
        module = zoo.create(spec, seed=0).eval()
        module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
        with torch.no_grad():
            self._share = float((module(self._x).argmax(1) == TARGET).float().mean())

    def seen(self) -> dict[str, Any]:
        """The share, at the last look."""
        return {"back door": self._share}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    found = read_suite("hostile", quick=args.quick)
    suite, seeds = found["suite"], seeds_of(found["suite"], args.seeds)
    finished = run_jobs([job for seed in seeds for job in jobs_of(found, seed)])
    runs: dict[str, list[Finished]] = {}
    for job in finished:
        runs.setdefault(job.name, []).append(job)
    tables: dict[str, list[dict[str, Any]]] = {}
    for view in suite["views"]:
        for attack in suite["attacks"]:
            tables[f"{view} data, {attack}: accuracy in percent of honest devices"] = [
                _row(runs, choice, view, attack, suite["hostile"]) for choice in found["choices"]
            ]
        tables[f"{view} data: attacks that cost at most {LOSS:g} points, by how many devices"] = [
            {"choice": choice} | {str(n): _held(runs, choice, view, n, suite["attacks"]) for n in suite["hostile"]}
            for choice in found["choices"]
        ]
        if "back-door" in suite["attacks"]:
            tables[f"{view} data, back-door: stamped examples in percent taken for the attackers' class"] = [
                {"choice": choice, "0": _fooled(runs[name_of(choice, view)])}
                | {str(n): _fooled(runs[name_of(choice, view, "back-door", n)]) for n in suite["hostile"]}
                for choice in found["choices"]
            ]
    return {"seeds": seeds, "tables": tables, "checks": checks(found, runs)}


def name_of(choice: str, view: str, attack: str = PEACE, hostile: int = 0) -> str:
    """What a job is called."""
    return f"{choice} {view} {attack} {hostile}"


def jobs_of(found: Mapping[str, Any], seed: int) -> list[Job]:
    """In every view: every choice in peace, and under every attack by every number of devices."""
    suite = found["suite"]
    scale = {
        "run": {"rounds": suite["rounds"]},
        "fleet": {"devices": suite["devices"]},
        "simulate": {"devices": suite["devices"], "rows": suite["rows"]},
    }
    cases = [(PEACE, 0), *((attack, n) for attack in suite["attacks"] for n in suite["hostile"])]
    jobs = []
    for view, choice, (attack, hostile) in product(suite["views"], found["choices"], cases):
        simulate = {"hostile": hostile} | found["views"][view] | ({} if attack == PEACE else {"attack": attack})
        config = merged(found["config"], scale, {"update": found["choices"][choice], "simulate": simulate})
        name = name_of(choice, view, attack, hostile)
        jobs.append(Job(name, seed, config, watch=BackDoor, may_fail=attack != PEACE))
    return jobs


def honest_accuracy(job: Finished, hostile: int) -> float:
    """Mean accuracy at the end of the devices that did not lie; 0 for a run that was brought to an end before."""
    if not job.evaluations:
        return 0.0
    last = job.evaluations[-1].devices
    honest = sorted(last, key=lambda device: device.device)[hostile:]
    return 100 * mean(device.accuracy for device in honest if device.n)


def lost(runs: Runs, choice: str, view: str, attack: str, hostile: int) -> float:
    """Points that honest devices lose beside the plain mean left in peace."""
    pairs = zip(runs[name_of("plain", view)], runs[name_of(choice, view, attack, hostile)], strict=True)
    return mean(honest_accuracy(peace, hostile) - honest_accuracy(own, hostile) for peace, own in pairs)


def _row(runs: Runs, choice: str, view: str, attack: str, numbers: list[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"choice": choice, "0": mean(honest_accuracy(job, 0) for job in runs[name_of(choice, view)])}
    return row | {str(n): _reached(runs[name_of(choice, view, attack, n)], n) for n in numbers}


def _reached(jobs: list[Finished], hostile: int) -> float | str:
    """Accuracy, or that one of the runs did not get to its last round."""
    if not all(job.evaluations for job in jobs):
        return "ended"
    return mean(honest_accuracy(job, hostile) for job in jobs)


def _held(runs: Runs, choice: str, view: str, hostile: int, attacks: list[str]) -> str:
    held = sum(lost(runs, choice, view, attack, hostile) <= LOSS for attack in attacks)
    return f"{held} of {len(attacks)}"


def _fooled(jobs: list[Finished]) -> float | str:
    seen = [job.seen["back door"] for job in jobs if job.seen]
    return 100 * mean(seen) if seen else "ended"


def checks(found: Mapping[str, Any], runs: Runs) -> list[dict[str, Any]]:
    """What the recommended choice loses to each attack, that no run was brought to an end, and that attacks do harm."""
    suite = found["suite"]
    best, view, most = suite["recommended"], suite["views"][0], max(suite["hostile"])
    made = []
    for attack in suite["attacks"]:
        worst = max(lost(runs, best, view, attack, n) for n in suite["hostile"])
        name = f"{best}, {view} data, {attack}: points lost at most to up to {most} of {suite['devices']} devices"
        made.append(check(name, worst, f"<= {LOSS:g}", holds=worst <= LOSS))
    ended = sum(not job.evaluations for jobs in runs.values() for job in jobs)
    made.append(check("runs that an attack brought to an end", ended, "0", holds=not ended))
    harm = max(lost(runs, "plain", view, attack, n) for attack in suite["attacks"] for n in suite["hostile"])
    made.append(check("plain mean: points lost to the worst attack", harm, "> 10", holds=harm > 10))
    for other in suite["views"][1:]:
        worst = max(lost(runs, best, other, attack, n) for attack in suite["attacks"] for n in suite["hostile"])
        made.append(reported(f"{best}, {other} data: points lost to the worst attack", worst))
    return made
