"""What the pFedClub suites share: zoos of unlike models or of one, teachers, sizes and seconds."""

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwright.benchmarks.harness.search import form_of, tuned
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
from fedwright.server_runtime import zoo
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.methods.shared.teachers import TeacherMethod, load
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.worker import Part

# Setting -> label -> one finished job per seed.
Runs = Mapping[str, Mapping[str, list[Finished]]]

CLUB, LIMITED, HR = "pfedclub", "pfedclub+", "pfedhr"
NO_ORDER, NO_COMPLETION = "no order", "no completion"
LATE = 2
# A device's own model; and for all methods at the same moment what its next training begins with and what that makes.
PARTS: tuple[Part, ...] = ("test", "test before", "test after")
# The paper's teachers of its smallest model have 4.8 and 1.5 times its size.
MUCH = 2.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of one suite; with --json also the figure of model sizes beside it."""
    found = read_suite(args.suite, quick=args.quick)
    seeds = seeds_of(found["suite"], args.seeds)
    runs = finished_runs(args.suite, found, seeds)
    tables = {setting: rows(by, found["paper"].get(setting, {})) for setting, by in runs.items()}
    tables["accuracy, pfedclub - other in points, paired seeds"] = difference_rows(runs)
    tables["change of size per device"] = size_rows(runs)
    main = found["suite"]["settings"][0]
    eta = float(found["params"].get(LIMITED, {}).get("eta", 0.0))
    result: dict[str, Any] = {"seeds": seeds, "tables": tables, "checks": checks(runs, main, eta)}
    if args.json is not None:
        path = args.json.with_suffix(".sizes.png")
        result["pictures"] = [path.name] if draw_sizes(runs[main], path) else []
    return result


def finished_runs(suite: str, found: Mapping[str, Any], seeds: list[int]) -> dict[str, dict[str, list[Finished]]]:
    """All methods of all settings over all seeds."""
    jobs = [job for setting in found["suite"]["settings"] for job in jobs_of(found, setting, seeds)]
    done = run_jobs(tuned(suite, jobs))
    runs: dict[str, dict[str, list[Finished]]] = {}
    for job in done:
        setting, _, label = job.name.partition(": ")
        runs.setdefault(setting, {}).setdefault(label, []).append(job)
    return runs


def jobs_of(found: Mapping[str, Any], setting: str, seeds: list[int]) -> list[Job]:
    """One setting: its zoo, its way to deal, its public examples, and its methods."""
    suite, own = found["suite"], found["settings"][setting]
    dealt = {"devices": own.get("devices", suite["devices"]), "rows": suite["rows"], "partition": own["partition"]}
    scale = {
        "run": {"rounds": suite["rounds"]},
        "simulate": dealt,
        "fleet": {"sample_ratio": own.get("active", 1.0)},
        "public": {"rows": suite["public"], "labelled": own["labelled"]},
    }
    models = {"own": {"models": found["zoos"][own["zoo"]]}}
    jobs = []
    for seed in seeds:
        for label in (label for label in own["methods"] if label in suite.get("methods", own["methods"])):
            params = dict(found["params"].get(label, {}))
            # A method with one model for all takes the run's.
            method = {"name": label, **({} if params.pop("shared", False) else models), **params}
            config = merged(found["config"], scale, {"method": method})
            form = form_of(params) or {"form_of": label}
            name, share = f"{setting}: {label}", float(suite["share"])
            jobs.append(Job(name, seed, config, share, parts=PARTS, watch=TeacherWatch, **form))
    return jobs


def search_jobs(found: Mapping[str, Any]) -> list[Job]:
    """What settings are searched for: every method of the first setting that has it; a form takes its method's."""
    jobs: dict[str, Job] = {}
    for setting in found["suite"]["settings"]:
        for job in jobs_of(found, setting, [1]):
            if not job.fixed:
                jobs.setdefault(job.form_of, replace(job, name=job.form_of))
    return list(jobs.values())


class TeacherWatch:
    """How good and how large the teachers are before anybody learns from them."""

    def __init__(self, job: Job, dealt: Dealt) -> None:
        del job
        # Imported before anything is timed.
        importlib.import_module("sklearn.cluster")
        self._dealt = dealt
        self._rounds: list[dict[str, Any]] = []

    def __call__(self, method: Method, number: int) -> None:
        """Measure every teacher on its pupil's test rows."""
        if not isinstance(method, TeacherMethod):
            return
        for device in sorted(method.teachers):
            teacher = method.teachers[device]
            rows = self._dealt.shares[device].test
            module = zoo.create(teacher.spec, seed=0).eval()
            load(module, teacher.weights)
            # Counted in the tensors that devices get, not by what the method says of them.
            size, own = (
                sum(weights[name].size for name, _ in made.named_parameters())
                for made, weights in (
                    (module, teacher.weights),
                    (zoo.create(method.specs[device], seed=0), method.weights[device]),
                )
            )
            with torch.no_grad():
                said = module(torch.from_numpy(np.array(self._dealt.x[rows]))).argmax(1).numpy()
            self._rounds.append(
                {
                    "round": number,
                    "device": device,
                    "accuracy": float((said == self._dealt.y[rows]).mean()),
                    "change": size / own - 1.0,
                    "parameters": size,
                }
            )

    def seen(self) -> dict[str, Any]:
        """One entry per round and device."""
        return {"teachers": self._rounds}


def late_accuracy(own: Finished) -> float:
    """Mean accuracy of the devices in percent over the last measurements."""
    return 100 * mean(device.accuracy for entry in own.on("test")[-LATE:] for device in entry.devices if device.n)


def teachers(own: list[Finished]) -> list[dict[str, Any]]:
    """What was seen of teachers over all seeds."""
    return [entry for job in own for entry in job.seen.get("teachers", [])]


def teacher_accuracy(own: list[Finished]) -> float | None:
    """Mean accuracy of teachers in percent before distillation; None without any."""
    seen = teachers(own)
    return 100 * mean(entry["accuracy"] for entry in seen) if seen else None


def size_change(own: list[Finished]) -> float | None:
    """φ: the mean change of size from a model to its teacher; None without teachers."""
    seen = teachers(own)
    return mean(entry["change"] for entry in seen) if seen else None


def server_seconds(own: list[Finished]) -> float | None:
    """CPU seconds per round that the server took to make teachers; None for methods that make none."""
    seen = [metrics["server_s"] for job in own for metrics in job.metrics if "server_s" in metrics]
    return mean(seen) if seen else None


def rows(by: Mapping[str, list[Finished]], paper: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row per method; the first is pFedClub's, with which a report compares the others."""
    first = [CLUB, *(label for label in by if label != CLUB)]
    return [_row(label, by[label], paper) for label in first]


def _row(label: str, own: list[Finished], paper: Mapping[str, float]) -> dict[str, Any]:
    values = [late_accuracy(job) for job in own]
    return {
        "method": label,
        "accuracy %": mean(values),
        "error": standard_error(values),
        "before own training": 100 * mean(job.curve("test before", "mean")[-1] for job in own),
        "after own training": 100 * mean(job.curve("test after", "mean")[-1] for job in own),
        "paper accuracy %": paper.get(label),
        "teacher %": teacher_accuracy(own),
        "φ": size_change(own),
        "server s": server_seconds(own),
    }


def size_rows(runs: Runs) -> list[dict[str, Any]]:
    """φ of every device under every method that has teachers."""
    rows = []
    for setting, by in runs.items():
        for label, own in by.items():
            seen = teachers(own)
            devices = sorted({entry["device"] for entry in seen})
            changes = {d: mean(e["change"] for e in seen if e["device"] == d) for d in devices}
            if changes:
                rows.append({"setting": setting, "method": label, **changes})
    return rows


def difference_rows(runs: Runs) -> list[dict[str, Any]]:
    """pFedClub against every other method in every setting, seed by seed."""
    rows = []
    for setting, by in runs.items():
        for label in (label for label in by if label != CLUB):
            ours, theirs = ([late_accuracy(job) for job in by[one]] for one in (CLUB, label))
            rows.append({"setting": setting, "other": label, "model": "own", **paired_row(ours, theirs)})
            ours, theirs = ([100 * job.curve("test after", "mean")[-1] for job in by[one]] for one in (CLUB, label))
            rows.append({"setting": setting, "other": label, "model": "after own training", **paired_row(ours, theirs)})
    return rows


def checks(runs: Runs, main: str, eta: float) -> list[dict[str, Any]]:
    """What the paper promises of teachers in the main setting; that none is too large holds in all of them."""
    found, by = [], runs[main]
    phi = {label: size_change(own) or 0.0 for label, own in by.items()}
    if HR in by:
        found.append(check("φ pfedhr - φ pfedclub", phi[HR] - phi[CLUB], "> 0", holds=phi[HR] > phi[CLUB]))
        larger = (1 + phi[HR]) / (1 + phi[CLUB])
        found.append(check("size of teachers, pfedhr / pfedclub", larger, f">= {MUCH:g}", holds=larger >= MUCH))
        ratio = (server_seconds(by[HR]) or 0.0) / max(1e-9, server_seconds(by[CLUB]) or 0.0)
        found.append(check("server seconds, pfedhr / pfedclub", ratio, "> 1", holds=ratio > 1))
    if LIMITED in by:
        least = phi[CLUB] - phi[LIMITED]
        made = [entry for own in runs.values() for entry in teachers(own.get(LIMITED, []))]
        most = max((entry["change"] for entry in made), default=-1.0)
        found.append(check("φ pfedclub - φ pfedclub+", least, ">= 0", holds=least >= 0))
        found.append(check("largest φ of any device and round, pfedclub+", most, f"<= {eta:g}", holds=most <= eta))
    for other in (NO_ORDER, NO_COMPLETION):
        if other in by:
            points = (teacher_accuracy(by[CLUB]) or 0.0) - (teacher_accuracy(by[other]) or 0.0)
            found.append(check(f"teacher accuracy, pfedclub - {other}, points", points, "> 0", holds=points > 0))
    return found


def draw_sizes(by: Mapping[str, list[Finished]], path: Path) -> bool:
    """Teachers' parameters over the rounds, one panel per device of the first seed; False without teachers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [label for label in (HR, CLUB, LIMITED) if label in by and teachers(by[label][:1])]
    devices = sorted({entry["device"] for label in labels for entry in teachers(by[label][:1])})
    if not devices:
        return False
    figure, panels = pyplot.subplots(1, len(devices), figsize=(2.2 * len(devices), 2.6), sharex=True, squeeze=False)
    for panel, device in zip(panels[0], devices, strict=True):
        for label in labels:
            seen = [entry for entry in teachers(by[label][:1]) if entry["device"] == device]
            panel.plot([e["round"] for e in seen], [e["parameters"] for e in seen], marker=".", label=label)
        panel.set_title(device, fontsize=8)
        panel.set_yscale("log")
        panel.tick_params(labelsize=6)
    panels[0][0].set_ylabel("parameters of the teacher", fontsize=7)
    panels[0][0].legend(fontsize=6, loc="upper right")
    figure.supxlabel("round", fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
