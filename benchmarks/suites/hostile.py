"""The suite hostile: what 1 to 4 lying devices of 10 do to a model, by how updates are put together."""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedwright.benchmarks.harness.suite import Finished, Job, check, mean, merged, read_suite, run_jobs, seeds_of
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
    tables = {
        f"{attack}: accuracy in percent of honest devices": [
            _row(runs, choice, attack, suite["hostile"]) for choice in found["choices"]
        ]
        for attack in suite["attacks"]
    }
    if "back-door" in suite["attacks"]:
        tables["back-door: stamped examples in percent that are taken for the attackers' class"] = [
            {"choice": choice, "0": _fooled(runs[name_of(choice)])}
            | {str(n): _fooled(runs[name_of(choice, "back-door", n)]) for n in suite["hostile"]}
            for choice in found["choices"]
        ]
    return {"seeds": seeds, "tables": tables, "checks": checks(found, runs)}


def name_of(choice: str, attack: str = PEACE, hostile: int = 0) -> str:
    """What a job is called."""
    return f"{choice} {attack} {hostile}"


def jobs_of(found: Mapping[str, Any], seed: int) -> list[Job]:
    """Every choice in peace, and under every attack by every number of devices."""
    suite = found["suite"]
    scale = {
        "run": {"rounds": suite["rounds"]},
        "fleet": {"devices": suite["devices"]},
        "simulate": {"devices": suite["devices"], "rows": suite["rows"]},
    }
    cases = [(PEACE, 0), *((attack, n) for attack in suite["attacks"] for n in suite["hostile"])]
    jobs = []
    for choice, update in found["choices"].items():
        for attack, hostile in cases:
            simulate = {"hostile": hostile} | ({} if attack == PEACE else {"attack": attack})
            config = merged(found["config"], scale, {"update": update, "simulate": simulate})
            jobs.append(Job(name_of(choice, attack, hostile), seed, config, watch=BackDoor, may_fail=attack != PEACE))
    return jobs


def honest_accuracy(job: Finished, hostile: int) -> float:
    """Mean accuracy at the end of the devices that did not lie; 0 for a run that was brought to an end before."""
    if not job.evaluations:
        return 0.0
    last = job.evaluations[-1].devices
    honest = sorted(last, key=lambda device: device.device)[hostile:]
    return 100 * mean(device.accuracy for device in honest if device.n)


def lost(runs: Runs, choice: str, attack: str, hostile: int) -> float:
    """Points that honest devices lose beside the plain mean left in peace."""
    pairs = zip(runs[name_of("plain")], runs[name_of(choice, attack, hostile)], strict=True)
    return mean(honest_accuracy(peace, hostile) - honest_accuracy(own, hostile) for peace, own in pairs)


def _row(runs: Runs, choice: str, attack: str, numbers: list[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"choice": choice, "0": mean(honest_accuracy(job, 0) for job in runs[name_of(choice)])}
    return row | {str(n): mean(honest_accuracy(job, n) for job in runs[name_of(choice, attack, n)]) for n in numbers}


def _fooled(jobs: list[Finished]) -> float:
    return 100 * mean(job.seen["back door"] for job in jobs if job.seen)


def checks(found: Mapping[str, Any], runs: Runs) -> list[dict[str, Any]]:
    """The most that each robust choice loses to any attack by as many devices as it promises to outlast."""
    suite = found["suite"]
    made = []
    for choice, most in found["most"].items():
        cases = [(attack, n) for attack in suite["attacks"] for n in suite["hostile"] if n <= most]
        worst = max(lost(runs, choice, attack, n) for attack, n in cases)
        name = f"{choice}: points lost at most to any attack by up to {most} of {suite['devices']} devices"
        made.append(check(name, worst, f"<= {LOSS:g}", holds=worst <= LOSS))
    harm = max(lost(runs, "plain", attack, n) for attack in suite["attacks"] for n in suite["hostile"])
    made.append(check("plain mean: points lost to the worst attack", harm, "> 10", holds=harm > 10))
    return made
