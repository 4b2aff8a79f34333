"""Settings chosen on validation rows: what was tried for each method and how it scored, kept beside the suites.

Every method gets the same number of trials, at seeds that no suite reports and on rows that nobody tests on. A suite
then runs with what was chosen. `fedwright bench search SUITE` writes benchmarks/search/SUITE.json.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from typing import Any

from fedwright.benchmarks.harness.suite import Finished, Job, mean, merged, run_jobs
from fedwright.protocol.errors import ConfigError

# Suites report seeds 1, 2, …; what is looked at while settings are chosen begins here.
FIRST_SEED = 101


@dataclass(frozen=True)
class Trial:
    """Settings of [train] and of the method that are tried together."""

    train: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)


def trials_of(search: Mapping[str, Any], method: str) -> list[Trial]:
    """Learning rates by values of the method's own settings; as many for every method, or ConfigError."""
    own = search.get("own", {}).get(method, {})
    tables = [dict(zip(own, values, strict=True)) for values in itertools.product(*own.values())]
    count = int(search["trials"])
    if count % len(tables) or count // len(tables) > len(search["rates"]):
        raise ConfigError(
            f"[search] gives every method {count} trials, but {method} has {len(tables)} settings of its own and there"
            f" are {len(search['rates'])} rates; make their products equal"
        )
    rates = [float(rate) for rate in search["rates"][: count // len(tables)]]
    return [Trial({"learning_rate": rate}, params) for params in tables for rate in rates]


def search(found: Mapping[str, Any], jobs: Sequence[Job]) -> dict[str, Any]:
    """Run all trials of all methods and choose by mean accuracy on validation rows; test rows are not looked at.

    found: the suite's file, whose [search] says what is tried, and may make the searched runs smaller than those that
    are reported (scale). jobs: of the suite, one for each label; their seeds do not count.
    """
    seeds = [FIRST_SEED + number for number in range(int(found["search"]["seeds"]))]
    plans = [(job, trial) for job in jobs for trial in trials_of(found["search"], job.name)]
    finished = run_jobs([_job(*plan, number, seed) for number, plan in enumerate(plans) for seed in seeds])
    tried = []
    for number, (job, trial) in enumerate(plans):
        own = [done for done in finished if done.name == f"{job.name} {number}"]
        tried.append({"method": job.name, **asdict(trial), "val": round(100 * mean(map(score, own)), 3)})
    best = {job.name: _best(tried, job.name) for job in jobs}
    return {"seeds": seeds, "scale": found["search"].get("scale", {}), "tried": tried, "chosen": best}


def _job(job: Job, trial: Trial, number: int, seed: int) -> Job:
    """A job of the search: only validation rows are measured, and nobody watches."""
    config = with_trial(job, trial).config
    return replace(job, name=f"{job.name} {number}", seed=seed, config=config, parts=("val",), watch=None)


def with_trial(job: Job, trial: Trial) -> Job:
    """The job with the settings of a trial."""
    return replace(job, config=merged(job.config, {"train": trial.train, "method": trial.params}))


def tuned(suite: str, jobs: Sequence[Job]) -> list[Job]:
    """Jobs with what was chosen for their labels; those of labels that nobody searched are as they were."""
    settings = chosen(suite)
    return [with_trial(job, settings.get(job.name, Trial())) for job in jobs]


def score(job: Finished) -> float:
    """Mean accuracy of the devices on their validation rows after the last round."""
    return job.curve("val", "mean")[-1]


def _best(tried: list[dict[str, Any]], method: str) -> dict[str, Any]:
    best = max((one for one in tried if one["method"] == method), key=lambda one: float(one["val"]))
    return {"train": best["train"], "params": best["params"], "val": best["val"]}


def chosen(suite: str) -> dict[str, Trial]:
    """What was chosen for each method of a suite; nothing where no search was committed."""
    file = resources.files("fedwright.benchmarks").joinpath("search", f"{suite}.json")
    if not file.is_file():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))["chosen"]
    return {method: Trial(own["train"], own["params"]) for method, own in found.items()}
