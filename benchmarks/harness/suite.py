"""Comparisons as data: a suite's TOML says what is run; its jobs are simulations, several at a time."""

import json
import math
import multiprocessing
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import msgspec
import tomllib

from fedwright.benchmarks.harness.cluster import cluster_section, on_workers
from fedwright.benchmarks.harness.kept_jobs import place_of
from fedwright.benchmarks.harness.sent_models import SentModels
from fedwright.benchmarks.harness.tracking import tracking_of
from fedwright.device_runtime.facts import cores
from fedwright.protocol.errors import RoundError
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.support.steps import steps
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.config_sections.engine import EngineSection
from fedwright.server_runtime.evaluate.metrics import paired
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.run_folder.folder import folder_of
from fedwright.simulation.dealing import Dealt, deal, thin
from fedwright.simulation.simulate import FleetEvaluation, simulate
from fedwright.simulation.worker import Part


@dataclass(frozen=True)
class Job:
    """One simulation: a name, a seed, a config as data, and which share of the training rows it uses.

    watch: makes something that sees the method after every measured round, and says in the end what it saw.
    may_fail: a run that cannot go on is a result too, without measurements.
    form_of: whose settings it runs with where they were searched, if not those of its own name; fixed: settings of its
    method that no search replaces, because they make it what it is.
    """

    name: str
    seed: int
    config: Mapping[str, Any]
    share: float = 1.0
    parts: tuple[Part, ...] = ("test",)
    watch: "Callable[[Job, Dealt], Watcher] | None" = None
    may_fail: bool = False
    form_of: str = ""
    fixed: tuple[str, ...] = ()


class Watcher(Protocol):
    """Sees a method as it is after a round; what it saw is plain data, as JSON has it."""

    def __call__(self, method: Method, number: int) -> None:
        """Look at it."""
        ...

    def seen(self) -> dict[str, Any]:
        """What there was to see."""
        ...


@dataclass(frozen=True)
class Finished:
    """What a job left; seen["entries"]: the most entries of a model that each device was sent, counted in the blobs."""

    name: str
    seed: int
    evaluations: list[FleetEvaluation]
    devices: dict[str, DeviceRecord]
    metrics: list[dict[str, float]]
    seen: dict[str, Any] = field(default_factory=dict)
    round_s: list[float] = field(default_factory=list)

    @property
    def server_s(self) -> float:
        """Seconds per round besides what the devices worked, one after the other, in the same process."""
        worked = sum(record.task_s for record in self.devices.values())
        return max(0.0, (sum(self.round_s) - worked) / max(1, len(self.round_s)))

    def curve(self, part: Part, figure: str) -> list[float]:
        """One figure of the fleet over the rounds that were measured."""
        return [summary(entry)[figure] for entry in self.on(part)]

    def on(self, part: Part) -> list[FleetEvaluation]:
        """The measurements on one part of the devices' data, in order."""
        return [entry for entry in self.evaluations if entry.part == part]


def summary(entry: FleetEvaluation) -> dict[str, float]:
    """The fleet's figures after one round; devices without samples do not count."""
    return entry.summary()


def read_suite(name: str, *, quick: bool) -> dict[str, Any]:
    """A suite's file; with `quick` the keys of its table [quick] replace those of [suite], which stay in "whole"."""
    text = resources.files("fedwright.benchmarks").joinpath("suites", f"{name}.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)
    found["whole"] = dict(found["suite"])
    if quick:
        found["suite"] |= found.get("quick", {})
    return found


def merged(base: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config with some keys of some sections replaced."""
    result = {name: dict(section) for name, section in base.items()}
    for change in changes:
        for name, section in change.items():
            result[name] = {**result.get(name, {}), **section}
    return result


def run_jobs(jobs: Sequence[Job], *, processes: int | None = None) -> list[Finished]:
    """All jobs, in their order; as many at a time as there are cores for this process (`taskset`), or on a cluster."""
    section = cluster_section()
    if section is not None:
        return _run_on_cluster(jobs, section)
    count = min(len(jobs), processes or cores())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_use_one_thread)
    with steps("simulations", len(jobs)) as advance, pool:
        work = [pool.submit(run_kept, with_tracking(job), place_of(job)) for job in jobs]
        try:
            for done in as_completed(work):
                done.result()
                advance()
        finally:
            # One that failed ends the suite: those that have not begun need not.
            pool.shutdown(wait=False, cancel_futures=True)
        return [done.result() for done in work]


def _run_on_cluster(jobs: Sequence[Job], section: EngineSection) -> list[Finished]:
    """All jobs; what is kept of an earlier start, and is kept for the next, stays with this process."""
    places = [place_of(job) for job in jobs]
    found = {n: _read_kept(place) for n, place in enumerate(places) if place is not None and place.exists()}
    left = [number for number in range(len(jobs)) if number not in found]

    def keep(index: int, finished: Finished) -> None:
        place = places[left[index]]
        if place is not None:
            _keep(place, finished)

    made = on_workers(section, run_job, [with_tracking(jobs[number]) for number in left], done=keep) if left else []
    found |= dict(zip(left, made, strict=True))
    return [found[number] for number in range(len(jobs))]


def _read_kept(place: Path) -> Finished:
    return msgspec.json.decode(place.read_bytes(), type=Finished)


def _keep(place: Path, finished: Finished) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, msgspec.json.encode(finished))


def with_tracking(job: Job) -> Job:
    """The job with the tools that are to be told of it, where a command has asked for any."""
    section = tracking_of(f"{job.name}-{job.seed}")
    return replace(job, config=merged(job.config, {"track": section})) if section else job


def _use_one_thread() -> None:
    """There is a process for every core; threads of torch in each of them would wait for one another."""
    import torch

    torch.set_num_threads(1)


def run_kept(job: Job, place: Path | None) -> Finished:
    """The job, or what is kept of it since an earlier start of the same suite."""
    if place is not None and place.exists():
        return _read_kept(place)
    # What a watcher saw of earlier rounds is not kept, so a job that has one begins anew.
    begun = None if place is None or job.watch is not None else place.with_suffix(".run")
    finished = run_job(job) if begun is None else run_job(job, begun)
    if place is not None:
        _keep(place, finished)
    if begun is not None:
        shutil.rmtree(begun, ignore_errors=True)
    return finished


def run_job(job: Job, begun: Path | None = None) -> Finished:
    """One simulation inside this process; in `begun` it goes on with the round in which it was interrupted."""
    with tempfile.TemporaryDirectory(prefix="fedwright-suite-") if begun is None else nullcontext(str(begun)) as folder:
        data = merged(
            job.config,
            {
                "run": {"name": "job", "folder": folder, "seed": job.seed},
                "simulate": {"processes": 0},
                "export": {"global_model": False},
            },
        )
        config = config_from_dict(data, where=f"suite job {job.name}")
        dealt = deal(config.simulate, seed=job.seed)
        if job.share < 1:
            dealt = thin(dealt, job.share, seed=job.seed)
        watcher = None if job.watch is None else job.watch(job, dealt)
        sent = SentModels(folder_of(config).blobs)
        try:
            found = simulate(config, json.dumps(data), observer=sent, dealt=dealt, parts=job.parts, look=watcher)
        except RoundError:
            if not job.may_fail:
                raise
            return Finished(job.name, job.seed, [], {}, [])
    seen = {"entries": sent.most, **({} if watcher is None else watcher.seen())}
    outcome = found.outcome
    return Finished(job.name, job.seed, found.evaluations, outcome.devices, outcome.metrics, seen, found.round_s)


def check(name: str, value: float, target: str, *, holds: bool) -> dict[str, Any]:
    """One promise of a suite with what was measured."""
    return {"name": name, "value": round(float(value), 4), "target": target, "holds": bool(holds)}


def reported(name: str, value: float) -> dict[str, Any]:
    """A figure that a suite shows beside its promises without promising anything."""
    return check(name, value, "reported", holds=True)


def paired_row(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """The mean difference over paired seeds, its standard error, its 95 % interval and what three tests say of it."""
    test = paired(list(ours), list(theirs))
    return {
        "difference": test.mean,
        "error": test.error if test.pairs > 1 else None,
        **dict(zip(("from", "to"), test.interval if test.pairs > 1 else (None, None), strict=True)),
        "wins": f"{test.wins} of {test.pairs}",
        "p (t)": test.t_p,
        "p (Wilcoxon)": test.wilcoxon_p,
        "p (sign)": test.sign_p,
    }


def mean(values: Iterable[float]) -> float:
    """The mean of at least one value."""
    listed = list(values)
    return sum(listed) / len(listed)


def standard_error(values: Iterable[float]) -> float | None:
    """Of the mean, from the spread of the values; None where there is only one."""
    listed = list(values)
    return statistics.stdev(listed) / math.sqrt(len(listed)) if len(listed) > 1 else None


def seeds_of(suite: Mapping[str, Any], asked: int | None) -> list[int]:
    """Seeds 1, 2, … as many as asked for or as the suite says."""
    return list(range(1, (asked or int(suite["seeds"])) + 1))
