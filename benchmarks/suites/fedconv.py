"""The suites fedconv-fashion and fedconv-har: FedConv beside its rivals, its control, and itself without its parts."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedwright.benchmarks.harness.fedconv_watch import GLOBAL, GlobalAccuracy, accuracy, whole_test
from fedwright.benchmarks.harness.search import tuned
from fedwright.benchmarks.harness.suite import (
    Finished,
    Job,
    check,
    mean,
    merged,
    paired_row,
    read_suite,
    reported,
    run_jobs,
    seeds_of,
)
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.methods.base import Setting
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.methods.fedconv.server_training import ServerSide
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import deal, reserve
from fedwright.simulation.worker import Part

CONV, CONTROL = "fedconv", "slice-tuned"
# Nobody in these shares a model with all others.
WITHOUT_GLOBAL = ("fedmd", "standalone")
RIVALS = ("heterofl", "fedrolex", "fedavg, smallest")
# HeteroFL whose devices train the rows of all classes, as FedConv's do: what both send is alike but for its values.
HETEROFL, ALL_CLASSES = "heterofl", "heterofl, all classes"
UNLIKE = ("alpha 0.05", "alpha 0.1", "by person")
LATE = 2
# Graphs, which travel once, differ by some hundred bytes: HeteroFL's has a mask and a scaler.
BYTES = 0.01
# Devices' models at the same moment for all methods: what they are given, and what they make of it.
PARTS: tuple[Part, ...] = ("test before", "test after")
Runs = Mapping[tuple[str, str], list[Finished]]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All of a suite: methods by division of the data, ablations, costs, sensitivity."""
    torch.set_num_threads(1)
    found = read_suite(args.suite, quick=args.quick)
    seeds = seeds_of(found["suite"], args.seeds)
    jobs = [job for seed in seeds for job in _jobs(found, seed)]
    runs: dict[tuple[str, str], list[Finished]] = {}
    for job, done in zip(jobs, run_jobs(tuned(args.suite, jobs)), strict=True):
        label, _, division = job.name.partition(" | ")
        runs.setdefault((label, division), []).append(done)
    divisions = [division for label, division in runs if label == CONV]
    alone = {division: mean(server_alone(found, division, seed) for seed in seeds) for division in divisions}
    tables: dict[str, Any] = {
        "accuracy in percent": accuracy_rows(found, runs, divisions, alone),
        "without its parts": ablation_rows(found, runs, divisions),
        "global accuracy, fedconv - other in points, paired seeds": difference_rows(runs, divisions),
        "cost of a device": cost_rows(found, runs, divisions[0]),
    }
    if found["suite"]["sensitivity"]:
        tables |= sensitivity_tables(found, runs)
    result = {"seeds": seeds, "tables": tables, "checks": checks(runs, divisions)}
    if args.json is not None:
        from fedwright.benchmarks.harness.fedconv_plots import draw

        result["pictures"] = draw(found, tables, Path(args.json))
    return result


def _jobs(found: Mapping[str, Any], seed: int) -> list[Job]:
    suite = found["suite"]
    divisions = [f"alpha {alpha:g}" for alpha in suite["alphas"]] or ["by person"]
    jobs = [
        _job(found, label, params, division, seed)
        for division in divisions
        for label, params in found["params"].items()
    ]
    middle = _middle(suite)
    for label, change in found["ablations"].items():
        if label in suite.get("parts", found["ablations"]):
            own = _job(found, label, {"name": CONV, **found["params"][CONV], **change}, middle, seed)
            jobs.append(replace(own, form_of=CONV, fixed=tuple(change)))
    if suite["sensitivity"]:
        jobs += _sensitivity_jobs(found, middle, seed)
    return jobs


def search_jobs(found: Mapping[str, Any]) -> list[Job]:
    """What settings are searched for: every method, on the division that has all parts."""
    middle = _middle(found["suite"])
    searched = {label: own for label, own in found["params"].items() if label != ALL_CLASSES}
    return [replace(_job(found, label, own, middle, 1), name=label) for label, own in searched.items()]


def _middle(suite: Mapping[str, Any]) -> str:
    """The division of the data on which FedConv's parts are compared."""
    return f"alpha {suite['ablation_alpha']:g}" if suite["alphas"] else "by person"


def _job(
    found: Mapping[str, Any],
    label: str,
    params: Mapping[str, Any],
    division: str,
    seed: int,
    change: Mapping[str, Any] | None = None,
) -> Job:
    config = merged(_config(found, division), {"method": {"name": label, **params}}, change or {})
    form = HETEROFL if label == ALL_CLASSES else label
    return Job(f"{label} | {division}", seed, config, parts=PARTS, watch=GlobalAccuracy, form_of=form)


def _config(found: Mapping[str, Any], division: str) -> dict[str, Any]:
    suite = found["suite"]
    dealt = {key: suite[key] for key in ("devices", "rows") if key in suite} | {"evaluate_every": 1}
    if division.startswith("alpha "):
        dealt["alpha"] = float(division.removeprefix("alpha "))
    sections = {"run": {"rounds": suite["rounds"]}, "public": {"rows": suite["public"]}, "simulate": dealt}
    return merged(found["config"], sections)


def _sensitivity_jobs(found: Mapping[str, Any], division: str, seed: int) -> list[Job]:
    params, wanted = found["params"][CONV], found["sensitivity"]
    jobs = []
    for ratio in wanted["ratios"]:
        own = {**params, "name": CONV, "levels": {"sizes": [ratio], "choose": "in_turn"}}
        jobs.append(_job(found, f"ratio {ratio:g}", own, division, seed))
    for rows in wanted["public"]:
        own = {**params, "name": CONV}
        jobs.append(_job(found, f"public {rows}", own, division, seed, {"public": {"rows": rows}}))
    for devices in wanted["devices"]:
        own = {**params, "name": CONV}
        jobs.append(_job(found, f"devices {devices}", own, division, seed, {"simulate": {"devices": devices}}))
    return [replace(job, form_of=CONV) for job in jobs]


def server_alone(found: Mapping[str, Any], division: str, seed: int) -> float:
    """Global accuracy of ordinary training on the server's examples alone, for as many epochs as FedConv has in all."""
    params, suite = found["params"][CONV], found["suite"]
    rounds = params["again_epochs"] + params["dilate_epochs"] + params["weigh_epochs"]
    epochs = params["pretrain_epochs"] + params["compress_epochs"] + suite["rounds"] * rounds
    data = merged(_config(found, division), {"method": {"name": "fedavg"}})
    config = config_from_dict(data, where="serveralone")
    dealt, public = reserve(deal(config.simulate, seed=seed), config.public, seed=seed)
    spec = ModelSpec(config.model.model, dealt.input_shape, dealt.classes)
    initial = initial_weights(zoo.create(spec, seed=seed))
    setting = Setting(spec, config.train.optimizer, initial, 1e-3, 32, 1, seed, public=public)
    server = ServerSide(FedConvParams(), setting, [spec])
    return accuracy(spec, server.improved(initial, spec, epochs), *whole_test(dealt))


def late(values: Sequence[float]) -> float:
    """Percent, mean of the last measurements: single ones move by several points."""
    return 100 * mean(values[-LATE:])


def global_of(own: Sequence[Finished]) -> float:
    """Accuracy of the global model on all test rows."""
    return mean(late(job.seen[GLOBAL]) for job in own)


def devices_of(own: Sequence[Finished]) -> float:
    """Mean over devices of the accuracy of what they are given on their own test rows."""
    return mean(late(job.curve("test before", "mean")) for job in own)


def trained_of(own: Sequence[Finished]) -> float:
    """The same after a round of their own training."""
    return mean(100 * job.curve("test after", "mean")[-1] for job in own)


def accuracy_rows(
    found: Mapping[str, Any], runs: Runs, divisions: Sequence[str], alone: Mapping[str, float]
) -> list[dict[str, Any]]:
    """One row per method; the last is the server by itself."""
    rows = []
    for label in found["params"]:
        row: dict[str, Any] = {"method": label}
        for division in divisions:
            own = runs[label, division]
            row[f"{division}: global"] = None if label in WITHOUT_GLOBAL else global_of(own)
            row[f"{division}: devices"] = devices_of(own)
            row[f"{division}: trained"] = trained_of(own)
        rows.append(row)
    return [*rows, {"method": "serveralone", **{f"{d}: global": 100 * value for d, value in alone.items()}}]


def ablation_rows(found: Mapping[str, Any], runs: Runs, divisions: Sequence[str]) -> list[dict[str, Any]]:
    """FedConv whole, then without one part at a time."""
    middle = next(division for label, division in runs if label in found["ablations"])
    labels = [CONV, *(label for label in found["ablations"] if (label, middle) in runs)]
    return [
        {
            "form": label,
            "global": global_of(runs[label, middle]),
            "devices": devices_of(runs[label, middle]),
            "trained": trained_of(runs[label, middle]),
        }
        for label in labels
    ]


def cost_rows(found: Mapping[str, Any], runs: Runs, division: str) -> list[dict[str, Any]]:
    """What the mean device of all seeds spends per round, beside the paper's Tables II and III.

    CPU is the simulator's and memory the server's prediction; boards are measured by `bench devices`.
    """
    rows = []
    for label in found["params"]:
        records = [record for job in runs[label, division] for record in job.devices.values()]
        gigabytes, seconds, traffic = found["paper"].get(label, [0.0, 0.0, 0.0])
        rows.append(
            {
                "method": label,
                "CPU ms per round": 1e3 * mean(record.cpu_s / max(1, record.rounds) for record in records),
                "predicted MB": 1e-6 * mean(record.need_bytes for record in records),
                "MB per round": 1e-6 * mean(_traffic(record) / max(1, record.rounds) for record in records),
                "paper GB": gigabytes or None,
                "paper s": seconds or None,
                "paper traffic GB": traffic or None,
            }
        )
    return rows


def _traffic(record: DeviceRecord) -> int:
    return record.bytes_up + record.bytes_down


def sensitivity_tables(found: Mapping[str, Any], runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """FedConv with one ratio for all, with more or fewer public rows, with more or fewer devices."""
    tables = {}
    for kind in ("ratio", "public", "devices"):
        own = {label: done for (label, _), done in runs.items() if label.startswith(f"{kind} ")}
        tables[f"sensitivity: {kind}"] = [
            {kind: float(label.split()[1]), "global": global_of(done), "mean": devices_of(done)}
            for label, done in own.items()
        ]
    return tables


def difference_rows(runs: Runs, divisions: Sequence[str]) -> list[dict[str, Any]]:
    """FedConv's global model against every other, seed by seed."""
    rows = []
    for division in divisions:
        ours = [late(job.seen[GLOBAL]) for job in runs[CONV, division]]
        for other in (*RIVALS, CONTROL):
            theirs = [late(job.seen[GLOBAL]) for job in runs[other, division]]
            rows.append({"division": division, "other": other, **paired_row(ours, theirs)})
    return rows


def checks(runs: Runs, divisions: Sequence[str]) -> list[dict[str, Any]]:
    """The paper's orderings where data are unlike, and equal traffic; the fair control is only reported."""
    found = []
    for division in divisions:
        ahead = {
            other: global_of(runs[CONV, division]) - global_of(runs[other, division]) for other in (*RIVALS, CONTROL)
        }
        for other, points in ahead.items():
            name = f"global, fedconv - {other}, points, {division}"
            # Where all devices have the same data, the paper has no difference either.
            promised = other in RIVALS and division in UNLIKE
            found.append(check(name, points, "> 0", holds=points > 0) if promised else reported(name, points))
    return [*found, *bytes_checks(runs, divisions)]


def bytes_checks(runs: Runs, divisions: Sequence[str]) -> list[dict[str, Any]]:
    """Recorded bytes of a round at equal width: the same down within 1 %, and no more up.

    Changes are packed without loss, and zeros pack to nothing. HeteroFL leaves the classifier's rows of classes that a
    device has not as they are, so that less of its changes is left where classes are missing: that ratio is only
    reported, and the promise is beside HeteroFL with a loss over all classes, which changes what FedConv changes.
    """
    found = []
    for division in divisions:
        ours = runs[CONV, division]
        down = bytes_ratios(ours, runs[HETEROFL, division], "bytes_down")
        farthest = max(down, key=lambda ratio: abs(ratio - 1))
        name = f"bytes down at equal width, fedconv / heterofl, farthest from 1, {division}"
        found.append(check(name, farthest, f"1 ± {BYTES:g}", holds=abs(farthest - 1) <= BYTES))
        for other in (ALL_CLASSES, HETEROFL):
            up, most = mean(bytes_ratios(ours, runs[other, division], "bytes_up")), 1 + BYTES
            name = f"bytes up at equal width, fedconv / {other}, mean of widths, {division}"
            promised = other == ALL_CLASSES
            found.append(check(name, up, f"<= {most:g}", holds=up <= most) if promised else reported(name, up))
    return found


def bytes_ratios(ours: Sequence[Finished], theirs: Sequence[Finished], way: str) -> list[float]:
    """What one method's devices send or receive per round over what another's do, for every width."""
    own, other = width_bytes(ours, way), width_bytes(theirs, way)
    # Without a common width there is nothing equal.
    return [own[width] / other[width] for width in sorted(own.keys() & other.keys())] or [0.0]


def width_bytes(own: Sequence[Finished], way: str) -> dict[float, float]:
    """Recorded bytes per round of the mean device of every width, over all seeds."""
    by_width: dict[float, list[float]] = {}
    for record in (record for job in own for record in job.devices.values()):
        by_width.setdefault(round(record.width, 4), []).append(getattr(record, way) / max(1, record.rounds))
    return {width: mean(values) for width, values in by_width.items()}
