"""The suites hostile and hostile-lenet: what lying devices do to a model, by how updates are put together."""

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

# Nobody lies; the liars stay away.
PEACE, ABSENCE = "peace", "absence"
PLAIN = "plain"
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
    found = chosen(args.suite, quick=args.quick)
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
        for beside in (PEACE, ABSENCE):
            title = f"{view} data: attacks that cost at most {LOSS:g} points beside {beside}, by how many devices"
            tables[title] = [
                {"choice": choice}
                | {str(n): _held(runs, choice, view, n, suite["attacks"], beside) for n in suite["hostile"]}
                for choice in found["choices"]
            ]
        if "back-door" in suite["attacks"]:
            tables[f"{view} data, back-door: stamped examples in percent taken for the attackers' class"] = [
                {"choice": choice, "0": _fooled(runs[name_of(choice, view)])}
                | {str(n): _fooled(runs[name_of(choice, view, "back-door", n)]) for n in suite["hostile"]}
                for choice in found["choices"]
            ]
    return {"seeds": seeds, "tables": tables, "checks": checks(found, runs)}


def chosen(name: str, *, quick: bool) -> dict[str, Any]:
    """A suite's file with the choices that it is to try."""
    found = read_suite(name, quick=quick)
    found["choices"] = {choice: found["choices"][choice] for choice in found["suite"].get("only", found["choices"])}
    return found


def name_of(choice: str, view: str, attack: str = PEACE, hostile: int = 0) -> str:
    """What a job is called."""
    return f"{choice} {view} {attack} {hostile}"


def jobs_of(found: Mapping[str, Any], seed: int) -> list[Job]:
    """In every view: every choice in peace and under every attack by every number of devices, plain without them."""
    suite = found["suite"]
    scale = {
        "run": {"rounds": suite["rounds"]},
        "fleet": {"devices": suite["devices"]},
        "simulate": {"devices": suite["devices"], "rows": suite["rows"]},
    }
    cases = [(PEACE, 0), *((attack, n) for attack in suite["attacks"] for n in suite["hostile"])]
    jobs = []
    alone = [(ABSENCE, n) for n in suite["hostile"]]
    wanted = [(choice, case) for choice in found["choices"] for case in (cases + alone if choice == PLAIN else cases)]
    for view, (choice, (attack, hostile)) in product(suite["views"], wanted):
        simulate = {"hostile": hostile} | found["views"][view] | ({} if attack == PEACE else {"attack": attack})
        config = merged(found["config"], scale, {"update": found["choices"][choice], "simulate": simulate})
        name = name_of(choice, view, attack, hostile)
        jobs.append(Job(name, seed, config, watch=BackDoor, may_fail=attack not in (PEACE, ABSENCE)))
    return jobs


def honest_accuracy(job: Finished, hostile: int) -> float:
    """Mean accuracy at the end of the devices that did not lie; 0 for a run that was brought to an end before."""
    if not job.evaluations:
        return 0.0
    last = job.evaluations[-1].devices
    honest = sorted(last, key=lambda device: device.device)[hostile:]
    return 100 * mean(device.accuracy for device in honest if device.n)


def lost(runs: Runs, choice: str, view: str, attack: str, hostile: int, *, beside: str) -> float:
    """Points that honest devices lose beside the plain mean in peace, or without the liars."""
    reference = name_of(PLAIN, view) if beside == PEACE else name_of(PLAIN, view, ABSENCE, hostile)
    pairs = zip(runs[reference], runs[name_of(choice, view, attack, hostile)], strict=True)
    return mean(honest_accuracy(peace, hostile) - honest_accuracy(own, hostile) for peace, own in pairs)


def _row(runs: Runs, choice: str, view: str, attack: str, numbers: list[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"choice": choice, "0": mean(honest_accuracy(job, 0) for job in runs[name_of(choice, view)])}
    return row | {str(n): _reached(runs[name_of(choice, view, attack, n)], n) for n in numbers}


def _reached(jobs: list[Finished], hostile: int) -> float | str:
    """Accuracy, or that one of the runs did not get to its last round."""
    if not all(job.evaluations for job in jobs):
        return "ended"
    return mean(honest_accuracy(job, hostile) for job in jobs)


def _held(runs: Runs, choice: str, view: str, hostile: int, attacks: list[str], beside: str) -> str:
    held = sum(lost(runs, choice, view, attack, hostile, beside=beside) <= LOSS for attack in attacks)
    return f"{held} of {len(attacks)}"


def _fooled(jobs: list[Finished]) -> float | str:
    seen = [job.seen["back door"] for job in jobs if job.seen]
    return 100 * mean(seen) if seen else "ended"


def checks(found: Mapping[str, Any], runs: Runs) -> list[dict[str, Any]]:
    """What the recommended choices lose to each attack, that no run was brought to an end, and that attacks do harm.

    Where data is alike, beside peace; where it is not, beside the honest devices alone: with liars go their rows.
    """
    suite = found["suite"]
    first, most = suite["views"][0], max(suite["hostile"])
    made = []
    for view in suite["views"]:
        best, beside = suite["recommended"][view], PEACE if view == first else ABSENCE
        for attack in suite["attacks"]:
            worst = max(lost(runs, best, view, attack, n, beside=beside) for n in suite["hostile"])
            name = f"{best}, {view} data, {attack}: points lost beside {beside} to up to {most} of {suite['devices']}"
            made.append(check(name, worst, f"<= {LOSS:g}", holds=worst <= LOSS))
    ended = sum(not job.evaluations for jobs in runs.values() for job in jobs)
    made.append(check("runs that an attack brought to an end", ended, "0", holds=not ended))
    cases = list(product(suite["attacks"], suite["hostile"]))
    harm = max(lost(runs, PLAIN, first, attack, n, beside=PEACE) for attack, n in cases)
    made.append(check("plain mean: points lost to the worst attack", harm, "> 10", holds=harm > 10))
    for view in suite["views"][1:]:
        best = suite["recommended"][view]
        worst = max(lost(runs, best, view, attack, n, beside=PEACE) for attack, n in cases)
        made.append(reported(f"{best}, {view} data: points lost beside {PEACE} to the worst attack", worst))
    return made
