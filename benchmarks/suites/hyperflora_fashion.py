"""The suites hyperflora-fashion and hyperflora-vit: HyperFLoRA, its variants and its controls, also on bystanders.

A base is pre-trained once per seed; all methods with adapters begin with it, so that they differ in nothing else. Of
every method, and of the base, that measured round counts which is best on the participants' validation rows.
"""

import argparse
import base64
import math
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.search import form_of, tuned
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
from fedwright.server_runtime.blocks.lora import round_values
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.methods.shared.submodels import count_params
from fedwright.server_runtime.seeds import number_of
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import Dealt
from fedwright.simulation.simulate import FleetEvaluation

Runs = Mapping[str, list[Finished]]
Group = Callable[[int], bool]

INPUT, CLASSES = (1, 28, 28), 10
FULL, PRETRAIN, WRITTEN = "hyperflora", "pretrain", "pfedhn"
EQUAL, STATE = "pfedhn at hyperflora's bytes", "state"
# One, other, on whom; those that the paper reports, and those to honest controls.
COMPARED = (
    (FULL, PRETRAIN, "bystanders"),
    (FULL, "fedprox", "bystanders"),
    (FULL, WRITTEN, "bystanders"),
    (FULL, EQUAL, "bystanders"),
    (FULL, "hyperflora, no pairs", "bystanders"),
    (FULL, PRETRAIN, "participants"),
    (FULL, WRITTEN, "participants"),
    ("adapters-private", FULL, "participants"),
    (FULL, "hyperflora, sequential", "bystanders"),
    ("hyperflora + head", FULL, "bystanders"),
    (FULL, "fedavg-masked", "bystanders"),
    ("hyperflora + mask", FULL, "bystanders"),
)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables, checks and, beside a JSON, the plot of the suite."""
    found = read_suite(args.suite, quick=args.quick)
    suite, seeds = found["suite"], seeds_of(found["suite"], args.seeds)
    runs, groups = finished_runs(args.suite, found, seeds), groups_of(suite)
    rows = accounted(runs, set(found["models"]))
    differences = [
        _difference(rows, groups, found["paper"], *pair) for pair in COMPARED if rows.keys() >= set(pair[:2])
    ]
    wire = traffic(found, runs)
    tables = {
        "accuracy in percent at the round that validation rows chose, and MB of all devices in the whole run": [
            _row(label, row, groups, found["paper"]) for label, row in rows.items()
        ],
        "differences in points, paired by device and by seed": differences,
        "numbers on the wire per round": [wire],
    }
    curves = {label: curve(row, groups) for label, row in rows.items() if row.last is None}
    pictures = [] if args.json is None else [args.json.with_suffix(".png")]
    for picture in pictures:
        draw(curves, picture)
    return {
        "seeds": seeds,
        "pictures": [picture.name for picture in pictures],
        "tables": tables | {"curves": [{"method": label, **point} for label in curves for point in curves[label]]},
        "shown": list(tables),
        "checks": [*checks(differences, wire), at_the_end(runs, groups)],
    }


class Leave:
    """Hands on a method's states, as plain text because finished jobs are kept as JSON."""

    def __init__(self, job: Job, dealt: Dealt) -> None:
        self._states: dict[str, str] = {}

    def __call__(self, method: Method, number: int) -> None:
        """Take it up."""
        self._states[str(number)] = base64.b64encode(method.state().to_bytes()).decode()

    def seen(self) -> dict[str, Any]:
        """The states of all measured rounds."""
        return {STATE: self._states}


def finished_runs(name: str, found: Mapping[str, Any], seeds: list[int]) -> dict[str, list[Finished]]:
    """First what trains whole models, then what begins with the base that this left."""
    labels = [label for label in found["params"] if label not in found["suite"].get("without", ())]
    first = [label for label in labels if label not in found["models"]]
    done = run_jobs(tuned(name, [_job(found, label, seed) for seed in seeds for label in first]))
    trains = groups_of(found["suite"])["participants"]
    with tempfile.TemporaryDirectory(prefix="fedwright-bases-") as folder:
        bases = {job.seed: _base(job, trains, Path(folder)) for job in done if job.name == PRETRAIN}
        begun = [label for label in labels if label in found["models"]]
        done += run_jobs(tuned(name, [_job(found, label, seed, bases[seed]) for seed in seeds for label in begun]))
    return {label: [job for job in done if job.name == label] for label in labels}


def search_jobs(found: Mapping[str, Any]) -> list[Job]:
    """What settings are searched for; adapters are searched for on a base that their own run trains."""
    labels = [label for label, params in found["params"].items() if "name" not in params or label == PRETRAIN]
    return [_job(found, label, 1) for label in labels]


def _base(job: Finished, trains: Group, folder: Path) -> Path:
    """The best of what pre-training came by, as a file."""
    path = folder / f"{job.seed}.safetensors"
    path.write_bytes(base64.b64decode(job.seen[STATE][str(chosen_round(job, trains))]))
    return path


def chosen_round(job: Finished, trains: Group, last: int | None = None) -> int:
    """The measured round (up to one) that is best on the participants' validation rows; the first of equals."""
    entries = [entry for entry in job.on("val") if last is None or entry.round <= last]
    best = max(entries, key=lambda entry: mean(_by_device(entry, job.seed, trains).values()))
    return best.round


def _job(found: Mapping[str, Any], label: str, seed: int, base: Path | None = None) -> Job:
    suite, params = found["suite"], found["params"][label]
    pretrain, adapt = suite["pretrain_rounds"], suite["adapter_rounds"]
    begins: dict[str, Any] = {"pretrain_rounds": pretrain} if label in found["models"] else {}
    if base is not None:
        begins = {"base": str(base), "pretrain_rounds": 0}
    rounds = adapt if base else pretrain if label in suite["pretrained"] else pretrain + adapt
    own = {
        "run": {"rounds": rounds},
        "fleet": {"per_round": suite["per_round"]},
        "simulate": {key: suite[key] for key in ("devices", "bystanders", "rows")},
        "method": {"name": label, **params, **begins},
        "model": {"model": found["models"].get(label, found["config"]["model"]["model"])},
    }
    config, watch = merged(found["config"], own), Leave if label == PRETRAIN else None
    return Job(label, seed, config, parts=("val", "test"), watch=watch, **form_of(params))


def groups_of(suite: Mapping[str, Any]) -> dict[str, Group]:
    """Who never trains, and who does: by the number of a device."""
    first = int(suite["devices"]) - int(suite["bystanders"])
    return {"bystanders": lambda number: number >= first, "participants": lambda number: number < first}


@dataclass(frozen=True)
class ResultRow:
    """One method over all seeds: rounds and MB that came before it, MB of its own, and the last round that counts."""

    own: list[Finished]
    megabytes: float
    rounds_before: int = 0
    megabytes_before: float = 0.0
    last: int | None = None


def accounted(runs: Runs, begins: set[str]) -> dict[str, ResultRow]:
    """What each method cost: adapters stand on a base that had its price. pFedHN also at HyperFLoRA's whole cost."""
    before, rounds = megabytes(runs[PRETRAIN]), runs[PRETRAIN][0].evaluations[-1].round
    rows = {
        label: ResultRow(own, megabytes(own), rounds, before) if label in begins else ResultRow(own, megabytes(own))
        for label, own in runs.items()
    }
    whole, ours = rows[WRITTEN], rows[FULL].megabytes + before
    measured = [entry.round for entry in whole.own[0].on("test")]
    affordable = [number for number in measured if number * whole.megabytes / measured[-1] <= ours]
    last = affordable[-1] if affordable else measured[0]
    rows[EQUAL] = ResultRow(whole.own, whole.megabytes * last / measured[-1], last=last)
    return rows


def megabytes(own: list[Finished]) -> float:
    """What all devices of a run moved, up and down; the mean over seeds."""
    return mean(sum(d.bytes_up + d.bytes_down for d in job.devices.values()) for job in own) / 1e6


def accuracies(job: Finished, groups: Mapping[str, Group], group: str, last: int | None = None) -> dict[str, float]:
    """Percent by device of a group on test rows, at the round that validation rows chose (up to one)."""
    number = chosen_round(job, groups["participants"], last)
    entry = next(entry for entry in job.on("test") if entry.round == number)
    return _by_device(entry, job.seed, groups[group])


def at_the_end(runs: Runs, groups: Mapping[str, Group]) -> dict[str, Any]:
    """How many runs did best at their last measurement: longer ones might have done better."""
    every = [job for own in runs.values() for job in own]
    last = [job for job in every if chosen_round(job, groups["participants"]) == job.on("val")[-1].round]
    return reported("share of runs whose chosen round is the last", len(last) / len(every))


def _by_device(entry: FleetEvaluation, seed: int, wanted: Group) -> dict[str, float]:
    return {
        device.device: 100 * device.accuracy
        for device in entry.devices
        if device.n and wanted(number_of(device.device, seed))
    }


def _row(label: str, row: ResultRow, groups: Mapping[str, Group], paper: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"method": label}
    for name in groups:
        made[name] = mean(mean(accuracies(job, groups, name, row.last).values()) for job in row.own)
    made["round"] = mean(chosen_round(job, groups["participants"], row.last) for job in row.own)
    made["MB"] = row.megabytes + row.megabytes_before
    for table, values in paper.items():
        given = [_published(values, label, place) for place in range(len(groups))]
        made[f"paper {table}"] = " / ".join("-" if value is None else f"{value:.2f}" for value in given)
    return made


def _published(values: Mapping[str, Any], label: str, place: int) -> float | None:
    """A number of the paper; nan stands for one that it does not give."""
    given = values.get(label.partition(" at ")[0])
    return None if given is None or math.isnan(given[place]) else float(given[place])


def _difference(
    rows: Mapping[str, ResultRow],
    groups: Mapping[str, Group],
    paper: Mapping[str, Any],
    one: str,
    other: str,
    group: str,
) -> dict[str, Any]:
    """Mean and standard error over the devices of all seeds; a sign where the mean is over two standard errors.

    Devices of one seed share a model, so that the same is said over seeds, too.
    """
    left, right = (
        [accuracies(job, groups, group, rows[label].last) for job in rows[label].own] for label in (one, other)
    )
    found = [value - theirs[d] for ours, theirs in zip(left, right, strict=True) for d, value in ours.items()]
    points, error = mean(found), statistics.stdev(found) / len(found) ** 0.5
    sign = "0" if abs(points) <= 2 * error else "+" if points > 0 else "-"
    made: dict[str, Any] = {"difference": f"{one} - {other}", "on": group}
    made |= {"points": points, "error by device": error, "sign": sign}
    by_seed = paired_row(*([mean(each.values()) for each in side] for side in (left, right)))
    made |= {key: value for key, value in by_seed.items() if key != "difference"}
    for table, values in paper.items():
        above, below = (_published(values, label, list(groups).index(group)) for label in (one, other))
        made[f"paper {table}"] = None if above is None or below is None else above - below
    return made


def traffic(found: Mapping[str, Any], runs: Runs) -> dict[str, Any]:
    """Numbers in one adapter round by the paper's formula and as counted, and bytes up as measured.

    In a round in which somebody has none of its pair's classes there are fewer than by the formula.
    """
    base = ModelSpec(found["config"]["model"]["model"], INPUT, CLASSES)
    adapted = ModelSpec(found["models"][FULL], INPUT, CLASSES, (("rank", 1),))
    adapter, selected = count_params(adapted) - count_params(base), int(found["suite"]["per_round"])
    pairs, exchanges = selected // 2, found["params"][FULL]["exchanges"]
    numbers = round_values(selected=selected, pairs=pairs, exchanges=exchanges, classes=CLASSES, adapter=adapter)
    counted = [2 * selected * CLASSES + 2 * m["adapters"] * adapter for job in runs[FULL] for m in job.metrics]
    sent, whole = (up_per_round(runs[label]) for label in (FULL, PRETRAIN))
    return {
        "by the formula": numbers,
        "most counted": max(counted),
        "mean counted": mean(counted),
        "bytes up measured": sent,
        "bytes up by the formula": 4 * adapter * (selected + 2 * exchanges * pairs),
        "fedavg's bytes up measured": whole,
    }


def up_per_round(own: list[Finished]) -> float:
    """Bytes that all devices sent in a round, by the sizes of what came; the mean over rounds and seeds."""
    return mean(sum(d.bytes_up for d in job.devices.values()) / len(job.metrics) for job in own)


def curve(row: ResultRow, groups: Mapping[str, Group]) -> list[dict[str, float]]:
    """Accuracy after every measured round, with all MB until then."""
    found = []
    entries = row.own[0].on("test")
    for place, entry in enumerate(entries):
        share = entry.round / entries[-1].round
        point: dict[str, float] = {"round": row.rounds_before + entry.round}
        point["MB"] = row.megabytes_before + share * row.megabytes
        for name, wanted in groups.items():
            values = [
                100 * device.accuracy
                for job in row.own
                for device in job.on("test")[place].devices
                if device.n and wanted(number_of(device.device, job.seed))
            ]
            point[name] = mean(values)
        found.append(point)
    return found


def draw(curves: Mapping[str, list[dict[str, float]]], path: Path) -> None:
    """Accuracy of bystanders and of participants against all MB that were moved."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for panel, name in zip(panels, ("bystanders", "participants"), strict=True):
        for label, points in curves.items():
            style = "--" if label in (PRETRAIN, "fedprox", "fedavg-masked") else "-"
            panel.plot([p["MB"] for p in points], [p[name] for p in points], style, label=label, linewidth=1.2)
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("MB moved by all devices", fontsize=8)
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize=7)
    panels[0].set_ylabel("accuracy, %", fontsize=8)
    panels[1].legend(fontsize=6, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def checks(differences: list[dict[str, Any]], wire: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Far above the base on bystanders; traffic by the formula and far less; what is only reported cannot fail."""
    by = {(row["difference"], row["on"]): row["points"] for row in differences}
    gain = by.pop((f"{FULL} - {PRETRAIN}", "bystanders"))
    most, sent = wire["most counted"], wire["bytes up measured"]
    ratio, excess = wire["fedavg's bytes up measured"] / sent, sent / wire["bytes up by the formula"]
    found = [
        check("hyperflora - pretrain on bystanders, points", gain, ">= 10", holds=gain >= 10),
        check(
            "most numbers in a round over the formula's",
            most / wire["by the formula"],
            "1",
            holds=most == wire["by the formula"],
        ),
        check("fedavg's bytes up per round over hyperflora's, measured", ratio, ">= 5", holds=ratio >= 5),
        check("bytes up per round, measured over the formula's", excess, "<= 1.5", holds=excess <= 1.5),
    ]
    for other in (EQUAL, "fedavg-masked"):
        value = by[f"{FULL} - {other}", "bystanders"]
        found.append(reported(f"{FULL} - {other} on bystanders, points", value))
    return found
