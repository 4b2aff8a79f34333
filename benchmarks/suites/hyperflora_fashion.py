"""The suite hyperflora-fashion: HyperFLoRA, its variants and its controls, on participants and bystanders.

A base is pre-trained once per seed; all methods with adapters begin with it, so that they differ in nothing else.
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
from fedwright.server_runtime.blocks.lora import round_values
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.methods.shared.submodels import count_params, number_of
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import Dealt

Runs = Mapping[str, list[Finished]]
Group = Callable[[int], bool]

BASE, CLASSES = ModelSpec("lenet-valid", (1, 28, 28), 10), 10
ADAPTED = ModelSpec("lenet-lora", (1, 28, 28), 10, (("rank", 1),))
FULL, PRETRAIN, WRITTEN = "hyperflora", "pretrain", "pfedhn"
EQUAL, STATE = "pfedhn at hyperflora's bytes", "state"
# Single measurements move by several points; the mean of the last ones does not.
LATE = 3
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
    found = read_suite("hyperflora-fashion", quick=args.quick)
    suite, seeds = found["suite"], seeds_of(found["suite"], args.seeds)
    runs, groups = finished_runs(found, seeds), groups_of(suite)
    rows = accounted(runs, set(found["models"]))
    differences = [
        _difference(rows, groups, found["paper"], *pair) for pair in COMPARED if rows.keys() >= set(pair[:2])
    ]
    wire = traffic(suite["per_round"], found["params"][FULL], runs[FULL])
    tables = {
        "accuracy in percent at the end, and MB of all devices until then": [
            _row(label, row, groups, found["paper"]) for label, row in rows.items()
        ],
        "differences in points, paired by device": differences,
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
        "checks": checks(differences, wire),
    }


class Leave:
    """Hands on a method's last state, as plain text because finished jobs are kept as JSON."""

    def __init__(self, job: Job, dealt: Dealt) -> None:
        self._state = b""

    def __call__(self, method: Method, number: int) -> None:
        """Take it up."""
        self._state = method.state().to_bytes()

    def seen(self) -> dict[str, Any]:
        """The state of the last measured round."""
        return {STATE: base64.b64encode(self._state).decode()}


def finished_runs(found: Mapping[str, Any], seeds: list[int]) -> dict[str, list[Finished]]:
    """First what trains whole models, then what begins with the base that this left."""
    labels = [label for label in found["params"] if label not in found["suite"].get("without", ())]
    first = [label for label in labels if label not in found["models"]]
    done = run_jobs([_job(found, label, seed) for seed in seeds for label in first])
    with tempfile.TemporaryDirectory(prefix="fedwright-bases-") as folder:
        bases = {job.seed: _base(job, Path(folder)) for job in done if job.name == PRETRAIN}
        begun = [label for label in labels if label in found["models"]]
        done += run_jobs([_job(found, label, seed, bases[seed]) for seed in seeds for label in begun])
    return {label: [job for job in done if job.name == label] for label in labels}


def _base(job: Finished, folder: Path) -> Path:
    """What pre-training left, as a file."""
    path = folder / f"{job.seed}.safetensors"
    path.write_bytes(base64.b64decode(job.seen[STATE]))
    return path


def _job(found: Mapping[str, Any], label: str, seed: int, base: Path | None = None) -> Job:
    suite, begins = found["suite"], {} if base is None else {"base": str(base), "pretrain_rounds": 0}
    pretrain, adapt = suite["pretrain_rounds"], suite["adapter_rounds"]
    rounds = adapt if begins else pretrain if label in suite["pretrained"] else pretrain + adapt
    own = {
        "run": {"rounds": rounds},
        "fleet": {"per_round": suite["per_round"]},
        "simulate": {key: suite[key] for key in ("devices", "bystanders", "rows")},
        "method": {"name": label, **found["params"][label], **begins},
        "model": {"model": found["models"].get(label, found["config"]["model"]["model"])},
    }
    return Job(label, seed, merged(found["config"], own), watch=Leave if label == PRETRAIN else None)


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
    measured = [entry.round for entry in whole.own[0].evaluations]
    affordable = [number for number in measured if number * whole.megabytes / measured[-1] <= ours]
    last = affordable[-1] if affordable else measured[0]
    rows[EQUAL] = ResultRow(whole.own, whole.megabytes * last / measured[-1], last=last)
    return rows


def megabytes(own: list[Finished]) -> float:
    """What all devices of a run moved, up and down; the mean over seeds."""
    return mean(sum(d.bytes_up + d.bytes_down for d in job.devices.values()) for job in own) / 1e6


def accuracies(job: Finished, wanted: Group, last: int | None = None) -> dict[str, float]:
    """Percent by device, the mean of the last measurements (up to a round)."""
    entries = [entry for entry in job.evaluations if last is None or entry.round <= last][-LATE:]
    found: dict[str, list[float]] = {}
    for entry in entries:
        for device in entry.devices:
            if device.n and wanted(number_of(device.device, job.seed)):
                found.setdefault(device.device, []).append(100 * device.accuracy)
    return {device: mean(values) for device, values in found.items()}


def _row(label: str, row: ResultRow, groups: Mapping[str, Group], paper: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"method": label}
    for name, wanted in groups.items():
        made[name] = mean(mean(accuracies(job, wanted, row.last).values()) for job in row.own)
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
    """Mean and standard error over the devices of all seeds; a sign where the mean is over two standard errors."""
    found: list[float] = []
    for ours, theirs in zip(rows[one].own, rows[other].own, strict=True):
        right = accuracies(theirs, groups[group], rows[other].last)
        found += [value - right[d] for d, value in accuracies(ours, groups[group], rows[one].last).items()]
    points, error = mean(found), statistics.stdev(found) / len(found) ** 0.5
    sign = "0" if abs(points) <= 2 * error else "+" if points > 0 else "-"
    made: dict[str, Any] = {"difference": f"{one} - {other}", "on": group}
    made |= {"points": points, "error": error, "sign": sign}
    for table, values in paper.items():
        left, below = (_published(values, label, list(groups).index(group)) for label in (one, other))
        made[f"paper {table}"] = None if left is None or below is None else left - below
    return made


def traffic(selected: int, params: Mapping[str, Any], own: list[Finished]) -> dict[str, Any]:
    """Numbers in one adapter round by the paper's formula and as counted, and in one FedAvg round.

    In a round in which somebody has none of its pair's classes there are fewer than by the formula.
    """
    adapter = count_params(ADAPTED) - count_params(BASE)
    pairs, exchanges = selected // 2, params["exchanges"]
    numbers = round_values(selected=selected, pairs=pairs, exchanges=exchanges, classes=CLASSES, adapter=adapter)
    counted = [2 * selected * CLASSES + 2 * m["adapters"] * adapter for job in own for m in job.metrics]
    fedavg = 2 * selected * count_params(BASE)
    return {
        "by the formula": numbers,
        "most counted": max(counted),
        "mean counted": mean(counted),
        "fedavg": fedavg,
        "fedavg / formula": fedavg / numbers,
    }


def curve(row: ResultRow, groups: Mapping[str, Group]) -> list[dict[str, float]]:
    """Accuracy after every measured round, with all MB until then."""
    found = []
    for place, entry in enumerate(row.own[0].evaluations):
        share = entry.round / row.own[0].evaluations[-1].round
        point: dict[str, float] = {"round": row.rounds_before + entry.round}
        point["MB"] = row.megabytes_before + share * row.megabytes
        for name, wanted in groups.items():
            values = [
                100 * device.accuracy
                for job in row.own
                for device in job.evaluations[place].devices
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
    most, ratio = wire["most counted"], wire["fedavg / formula"]
    found = [
        check("hyperflora - pretrain on bystanders, points", gain, ">= 10", holds=gain >= 10),
        check(
            "most numbers in a round over the formula's",
            most / wire["by the formula"],
            "1",
            holds=most == wire["by the formula"],
        ),
        check("fedavg's numbers per round over hyperflora's", ratio, ">= 10", holds=ratio >= 10),
    ]
    for other in (EQUAL, "fedavg-masked"):
        value = by[f"{FULL} - {other}", "bystanders"]
        found.append(reported(f"{FULL} - {other} on bystanders, points", value))
    return found
