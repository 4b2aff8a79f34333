"""Pictures of a suite's runs, as PNG files beside its result: mask coverage, accuracy by size, prototypes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedwright.benchmarks.harness.plots import save_pictures
from fedwright.benchmarks.harness.suite import Finished

Runs = Mapping[str, list[Finished]]
BINS = np.linspace(0, 100, 21)


def draw(runs: Runs, shares: Sequence[float], stem: Path) -> list[str]:
    """Write all pictures; returns their file names."""
    names = [f"1/{round(1 / share)}" if share < 1 else "1" for share in shares]
    pictures = {
        "coverage": coverage({label: own[0].seen.get("curves", []) for label, own in runs.items()}, names),
        "accuracy": histograms(runs, names),
        "prototypes": prototypes(runs["framp"][0].seen),
    }
    return save_pictures(stem, pictures)


def coverage(curves: Mapping[str, list[list[float]]], names: Sequence[str]) -> Figure:
    """How many of all choices fall on the entries that are chosen most, by size; a straight line is even use."""
    shown = {label: own for label, own in curves.items() if own}
    figure, axes = _figure(1, max(1, len(shown)))
    for axis, (label, own) in zip(axes, shown.items(), strict=False):
        for name, curve in zip(names, own, strict=True):
            axis.plot(np.linspace(0, 1, len(curve)), curve, label=name)
        axis.plot([0, 1], [0, 1], ":", color="grey")
        axis.set(title=label, xlabel="share of entries, most chosen first", ylabel="share of all choices")
        axis.legend(title="size", loc="upper right")
    return figure


def histograms(runs: Runs, names: Sequence[str]) -> Figure:
    """How many devices have which accuracy in the last measurement, by method and size."""
    figure, axes = _figure(1, len(runs))
    for axis, (label, own) in zip(axes, runs.items(), strict=True):
        groups: list[list[float]] = [[] for _ in names]
        for job in own:
            for place, device in enumerate(job.on("test")[-1].devices):
                groups[place % len(names)].append(100 * device.accuracy)
        axis.hist(groups, bins=BINS.tolist(), stacked=True, label=list(names))
        axis.set(title=label, xlabel="accuracy in percent", ylabel="devices")
    axes[0].legend(title="size", loc="upper right")
    return figure


def prototypes(seen: Mapping[str, Any]) -> Figure:
    """Class means of all devices (dots) and over devices (stars) on two principal components, early and late."""
    figure, axes = _figure(1, 2)
    for axis, when in zip(axes, ("early", "late"), strict=True):
        rows = seen.get(when, [])
        if rows:
            points, classes = _plane(np.stack([row["mean"] for row in rows])), np.array([row["class"] for row in rows])
            for label in np.unique(classes).tolist():
                own = points[classes == label]
                dots = axis.scatter(own[:, 0], own[:, 1], s=14, alpha=0.7)
                axis.scatter(*own.mean(axis=0), marker="*", s=160, color=dots.get_facecolor()[0], edgecolor="black")
        axis.set(title=when, xlabel="first component", ylabel="second component")
    return figure


def _plane(points: Any) -> Any:
    """Coordinates along the two directions of largest spread."""
    centred = points - points.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    return centred @ directions[:2].T


def _figure(rows: int, columns: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4 * columns, 3.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()
