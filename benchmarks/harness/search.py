"""Settings chosen on validation rows: what was tried for each method and how it scored, kept beside the suites.

Every method gets the same number of trials, at seeds that no suite reports and on rows that no suite uses (of data that
belong to people: on training rows that are kept for this). A suite then runs with what was chosen.
`fedwright bench search SUITE` writes benchmarks/search/SUITE.json.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from typing import Any

from fedwright.benchmarks.harness.suite import Finished, Job, mean, merged, read_suite, run_jobs
from fedwright.protocol.errors import ConfigError

# Suites report seeds 1, 2, …; what is looked at while settings are chosen begins here.
FIRST_SEED = 101
# Data sets that come with rows to choose by.
OWN_VALIDATION = ("medium-titles",)


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
    seeds = search_seeds(found)
    plans = [(job, trial) for job in jobs for trial in trials_of(found["search"], job.name)]
    finished = run_jobs([_job(found, *plan, number, seed) for number, plan in enumerate(plans) for seed in seeds])
    tried = []
    for number, (job, trial) in enumerate(plans):
        own = [done for done in finished if done.name == f"{job.name} {number}"]
        tried.append({"method": job.name, **asdict(trial), "val": round(100 * mean(map(score, own)), 3)})
    best = {job.name: _best(tried, job.name) for job in jobs}
    scale, skipped = found["search"].get("scale", {}), reported_rows(found)
    edges = [job.name for job in jobs if _at_an_edge(tried, job.name)]
    return {
        "seeds": seeds,
        "scale": scale,
        "rows left out": skipped,
        "best at an edge": edges,
        "tried": tried,
        "chosen": best,
    }


def search_file(name: str, *, quick: bool) -> dict[str, Any]:
    """A suite's file for its search, [suite] as [search.scale] has it; ConfigError where there is nothing to try."""
    found = read_suite(name, quick=quick)
    if "search" not in found:
        raise ConfigError(f"suite {name} has no [search] in its file; those that have: see benchmarks/search")
    found["suite"] |= found["search"].get("scale", {})
    return found


def search_seeds(found: Mapping[str, Any]) -> list[int]:
    """Seeds of the search; ConfigError where a suite would report one of them."""
    seeds = [FIRST_SEED + number for number in range(int(found["search"]["seeds"]))]
    most = max(int(part.get("seeds", 0)) for part in (found["whole"], found.get("quick", {})))
    if most >= FIRST_SEED:
        raise ConfigError(f"the suite reports seeds up to {most}, searches begin at {FIRST_SEED}; report fewer")
    return seeds


def reported_rows(found: Mapping[str, Any]) -> int:
    """The most rows of a data set that any form of the suite uses; a search leaves these out."""
    return max(int(part.get("rows", 0)) for part in (found["whole"], found.get("quick", {})))


def _job(found: Mapping[str, Any], job: Job, trial: Trial, number: int, seed: int) -> Job:
    """A job of the search: on rows that no suite reports, only validation rows are measured, and nobody watches.

    Settings with which a run cannot go on are a trial, too: one that scores nothing.
    """
    dealt = job.config["simulate"]
    apart = {} if dealt.get("partition") == "owner" else {"skip_rows": reported_rows(found)}
    every = int(found["search"].get("evaluate_every", 0))
    config = merged(with_trial(job, trial).config, {"simulate": {"evaluate_every": every, **apart}})
    if not dealt.get("val_ratio") and dealt.get("dataset") not in OWN_VALIDATION:
        raise ConfigError(f"{job.name} has no rows to choose settings by; give [config.simulate] a val_ratio")
    return replace(
        job, name=f"{job.name} {number}", seed=seed, config=config, parts=("val",), watch=None, may_fail=True
    )


def with_trial(job: Job, trial: Trial) -> Job:
    """The job with the settings of a trial, but for those that make the job what it is."""
    params = {key: value for key, value in trial.params.items() if key not in job.fixed}
    return replace(job, config=merged(job.config, {"train": trial.train, "method": params}))


def form_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Of a job whose label is not its method's: whose settings it takes, and which of its own stay."""
    return {"form_of": params["name"], "fixed": tuple(params)} if "name" in params else {}


def tuned(suite: str, jobs: Sequence[Job]) -> list[Job]:
    """Jobs with what was chosen for them, or for what they are a form of; others are as they were."""
    settings = chosen(suite)
    late = sorted({job.seed for job in jobs if job.seed >= FIRST_SEED})
    if settings and late:
        raise ConfigError(f"seeds {late} are for searches, not to be reported; ask for fewer seeds")
    return [with_trial(job, settings.get(job.name) or settings.get(job.form_of) or Trial()) for job in jobs]


def score(job: Finished) -> float:
    """Mean accuracy of the devices on their validation rows at the best measured round; 0 of a run that broke off.

    Without [search] evaluate_every that is the last round; suites that choose their round by validation rows have it.
    """
    return max(job.curve("val", "mean")) if job.evaluations else 0.0


def _best(tried: list[dict[str, Any]], method: str) -> dict[str, Any]:
    best = max((one for one in tried if one["method"] == method), key=lambda one: float(one["val"]))
    return {"train": best["train"], "params": best["params"], "val": best["val"]}


def _at_an_edge(tried: list[dict[str, Any]], method: str) -> bool:
    """Whether the best rate is the least or the largest that was tried, so that one beyond it may be better still."""
    rates = {one["train"]["learning_rate"] for one in tried if one["method"] == method}
    return _best(tried, method)["train"]["learning_rate"] in (min(rates), max(rates))


def chosen(suite: str) -> dict[str, Trial]:
    """What was chosen for each method of a suite; nothing where no search was committed."""
    file = resources.files("fedwright.benchmarks").joinpath("search", f"{suite}.json")
    if not file.is_file():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))["chosen"]
    return {method: Trial(own["train"], own["params"]) for method, own in found.items()}
