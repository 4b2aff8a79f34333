"""The suite framp-sizes: models of sizes that nobody trained, and devices of a size that was left out of training."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from fedwright.benchmarks.harness.generated_views import held_out_logits, load, one_thread
from fedwright.benchmarks.harness.search import tuned
from fedwright.benchmarks.harness.suite import (
    Finished,
    Job,
    merged,
    paired_row,
    read_suite,
    reported,
    run_jobs,
    seeds_of,
)
from fedwright.benchmarks.suites.framp_fashion import late
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.method_setting import make_method
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import Dealt, local_data

Runs = Mapping[str, list[Finished]]

OURS = "framp"
ALL, WITHOUT = "all train", "no 1/64"


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables of the suite; nothing is promised, because the paper shows pictures only."""
    found = read_suite("framp-sizes", quick=args.quick)
    seeds, trained = seeds_of(found["suite"], args.seeds), found["sizes"]["trained"]
    jobs = tuned("framp-fashion", jobs_of(found, seeds))
    done = run_jobs(jobs)
    runs = {label: [job for job in done if job.name == label] for label in dict.fromkeys(job.name for job in jobs)}
    rows = [excluded_row(method, runs, found) for method in found["methods"]]
    shares = sorted([*trained, *found["sizes"]["unseen"]], reverse=True)
    pairs = _pairs(runs, found)
    return {
        "seeds": seeds,
        "tables": {
            "common models on the test rows of all devices, in percent, by size": [
                {"method": method, **{f"{share:.3g}": at_size(runs, method, share) for share in shares}}
                for method in found["methods"]
            ],
            "devices with 1/64 of the parameters, and the others, when these train and when they do not": rows,
            "framp - other in points, paired seeds": pairs,
        },
        "checks": [reported(f"framp - {row['other']}, {row['what']}, points", row["difference"]) for row in pairs],
    }


def jobs_of(found: Mapping[str, Any], seeds: list[int]) -> list[Job]:
    """Every method twice: with all devices, and with those of the least size as bystanders, which come last."""
    suite, trained = found["suite"], found["sizes"]["trained"]
    devices = int(suite["devices"])
    small = devices // len(trained)
    # One size for each device by its number; those that come last have the least.
    apart = [trained[number % (len(trained) - 1)] for number in range(devices - small)] + [trained[-1]] * small
    scenes = {ALL: (apart, 0), WITHOUT: (apart, small)}
    scale = {"run": {"rounds": suite["rounds"]}, "fleet": {"per_round": suite["per_round"]}}
    jobs = []
    for seed in seeds:
        for method, key in found["methods"].items():
            for scene, (sizes, bystanders) in scenes.items():
                dealt = {"devices": devices, "rows": suite["rows"], "bystanders": bystanders}
                own = {"method": {"name": method, **sized(key, sizes)}, "simulate": dealt}
                watch = UnseenSizes if scene == ALL else None
                config = merged(found["config"], scale, own)
                jobs.append(Job(f"{method}, {scene}", seed, config, watch=watch, form_of=method, fixed=(key,)))
    return jobs


def sized(key: str, sizes: list[float]) -> dict[str, Any]:
    """The setting that names a method's sizes, all by parameters."""
    return {key: sizes} if key == "sizes" else {key: {"sizes": sizes, "by": "params"}}


class UnseenSizes:
    """After the last round: the common model at every size, trained ones and others, on all devices' test rows."""

    def __init__(self, job: Job, dealt: Dealt) -> None:
        self._job, self._dealt = job, dealt
        self._found: dict[str, float] = {}

    def __call__(self, method: Method, number: int) -> None:
        """Look at the method after a round."""
        if number < int(self._job.config["run"]["rounds"]):
            return
        sizes = read_suite("framp-sizes", quick=False)["sizes"]
        shares = [*sizes["trained"], *sizes["unseen"]]
        with one_thread():
            twin = self._twin(method, shares)
            owned = [local_data(self._dealt, device) for device in self._dealt.shares]
            rows = sum(len(data.y_holdout) for data in owned)
            for level, share in enumerate(shares):
                model = load(*twin.model_of(f"union-{level}"))
                right = [int((held_out_logits(model, data).argmax(axis=1) == data.y_holdout).sum()) for data in owned]
                self._found[f"{share:.3g}"] = sum(right) / rows

    def _twin(self, method: Method, shares: list[float]) -> Method:
        """The method as it is, with these sizes to cut models at."""
        key = self._job.fixed[0]
        data = merged(self._job.config, {"run": {"seed": self._job.seed}, "method": sized(key, shares)})
        config = config_from_dict(data, where=f"suite job {self._job.name}")
        spec = ModelSpec(config.model.model, self._dealt.input_shape, self._dealt.classes)
        twin = make_method(config, spec)
        twin.restore(method.state())
        return twin

    def seen(self) -> dict[str, Any]:
        """Accuracy by size."""
        return self._found


def at_size(runs: Runs, method: str, share: float) -> float:
    """Accuracy of the common model in percent, the mean over seeds."""
    own = runs[f"{method}, {ALL}"]
    return sum(100 * float(job.seen[f"{share:.3g}"]) for job in own) / len(own)


def excluded_row(method: str, runs: Runs, found: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracy of devices of the least size and of the others, in both scenes."""
    first = first_small(found)
    row: dict[str, Any] = {"method": method}
    for scene in (ALL, WITHOUT):
        own = runs[f"{method}, {scene}"]
        row[f"1/64, {scene}"] = sum(late(job, lambda number: number >= first) for job in own) / len(own)
        row[f"others, {scene}"] = sum(late(job, lambda number: number < first) for job in own) / len(own)
    return row


def first_small(found: Mapping[str, Any]) -> int:
    """The number of the first device of the least size."""
    devices = int(found["suite"]["devices"])
    return devices - devices // len(found["sizes"]["trained"])


def _pairs(runs: Runs, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    first, unseen = first_small(found), [f"{share:.3g}" for share in found["sizes"]["unseen"]]
    figures: dict[str, tuple[str, Callable[[Finished], float]]] = {
        "unseen sizes": (ALL, lambda job: 100 * sum(float(job.seen[share]) for share in unseen) / len(unseen)),
        "1/64 left out of training": (WITHOUT, lambda job: late(job, lambda number: number >= first)),
    }
    rows = []
    for other in (method for method in found["methods"] if method != OURS):
        for what, (scene, figure) in figures.items():
            ours, theirs = ([figure(job) for job in runs[f"{method}, {scene}"]] for method in (OURS, other))
            rows.append({"other": other, "what": what, **paired_row(ours, theirs)})
    return rows
