"""Pictures of results: what to draw is read off the columns of a table."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.tables import PAPER, Row, columns_of

# Columns that grow along an axis, and those that say how good or how dear something is.
ALONG = ("round", "devices", "parameters", "rounds")
GOOD = ("mean", "accuracy %", "weighted mean", "participants", "bystanders")
BYTES = ("upload kB", "kB per round", "up MB", "MB up", "MB", "bytes up")
PER_DEVICE = ("s per round", "CPU s", "peak MB", "device MB", "device CPU s")
MEMORY = {"peak MB", "predicted / peak"}
TIMES = {"round", "device", "s", "training s"}
# So many labels find room inside a plot.
MANY = 8
DOTS_PER_INCH = 110
# Of pictures that are kept beside a result.
DPI = 120


@dataclass(frozen=True)
class Picture:
    """One plot as PNG."""

    title: str
    png: bytes


def pictures(title: str, rows: Sequence[Row]) -> list[Picture]:
    """All plots that a table allows: curves, accuracy by size and by bytes, memory, costs and times of devices."""
    columns = columns_of(rows)
    first = columns[0]
    makers: list[tuple[bool, str, Callable[[Any], None]]] = [
        (_is_curve(first, rows), title, lambda axes: _curves(axes, rows)),
        (first in ALONG[1:], title, lambda axes: _growth(axes, rows)),
        (len(_sizes(columns)) > 1, f"{title}: by size", lambda axes: _by_size(axes, rows)),
        (_cost(columns) is not None, f"{title}: against bytes", lambda axes: _against_bytes(axes, rows)),
        (_costs_of_devices(columns) and first != "round", f"{title}: cost", lambda axes: _bars(axes, rows)),
        (set(columns) >= MEMORY, f"{title} against prediction", lambda axes: _memory(axes, rows)),
        (set(columns) >= TIMES, f"{title}: time", lambda axes: _time_lines(axes, rows)),
    ]
    return [Picture(name, _drawn(name, draw)) for wanted, name, draw in makers if wanted and len(rows) > 1]


def _drawn(title: str, draw: Callable[[Any], None]) -> bytes:
    # Importing it takes a second, and the command line lists suites without drawing any.
    from cycler import cycler
    from matplotlib import rcParams
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # More lines than colours are told apart by how they are drawn.
    axes.set_prop_cycle(cycler(linestyle=["-", "--", ":"]) * rcParams["axes.prop_cycle"])
    draw(axes)
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    labels = len(axes.get_legend_handles_labels()[1])
    if labels > MANY:
        axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif labels:
        axes.legend(fontsize=7, loc="best")
    target = io.BytesIO()
    # Without the date and the version equal tables give equal pictures.
    figure.savefig(target, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return target.getvalue()


def _is_curve(first: str, rows: Sequence[Row]) -> bool:
    """One row per round; a table of several devices has each round several times."""
    return first == "round" and len({row["round"] for row in rows}) == len(rows)


def _curves(axes: Any, rows: Sequence[Row]) -> None:
    for column in _numbers(rows)[1:]:
        axes.plot([row["round"] for row in rows], [row.get(column) for row in rows], marker=".", label=column)
    axes.set_xlabel("round")


def _growth(axes: Any, rows: Sequence[Row]) -> None:
    along = columns_of(rows)[0]
    for column in _numbers(rows)[1:]:
        pairs = [(row[along], row[column]) for row in rows if (row.get(column) or 0) > 0]
        if pairs:
            axes.loglog(*zip(*pairs, strict=True), marker="o", label=column)
    axes.set_xlabel(along)


def _by_size(axes: Any, rows: Sequence[Row]) -> None:
    columns = columns_of(rows)
    sizes = sorted(_sizes(columns), key=float)
    for row in rows:
        axes.plot([float(size) for size in sizes], [row.get(size) for size in sizes], marker="o", label=row[columns[0]])
    axes.set_xscale("log")
    axes.set_xlabel("share of the parameters")
    axes.set_ylabel("accuracy, %")


def _against_bytes(axes: Any, rows: Sequence[Row]) -> None:
    columns = columns_of(rows)
    cost, good = _cost(columns) or ("", "")
    for row in rows:
        if row.get(cost) is not None and row.get(good) is not None:
            axes.scatter(row[cost], row[good])
            axes.annotate(str(row[columns[0]]), (row[cost], row[good]), fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel(cost)
    axes.set_ylabel(good)


def _bars(axes: Any, rows: Sequence[Row]) -> None:
    """Costs side by side, each as a share of its largest, which the legend names."""
    columns = columns_of(rows)
    wanted = [column for column in PER_DEVICE if column in columns]
    names = [str(row[columns[0]]) for row in rows]
    height = 0.8 / len(wanted)
    for number, column in enumerate(wanted):
        values = [float(row.get(column) or 0) for row in rows]
        most = max(values) or 1.0
        places = [place + number * height for place in range(len(rows))]
        axes.barh(places, [value / most for value in values], height, label=f"{column} (largest {most:.3g})")
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(rows))], names, fontsize=7)
    axes.set_xlabel("share of the largest")


def _memory(axes: Any, rows: Sequence[Row]) -> None:
    """What was predicted over what was measured; on the line both are the same."""
    pairs = [(row["peak MB"], row["peak MB"] * row["predicted / peak"]) for row in rows if row.get("predicted / peak")]
    most = max(max(pair) for pair in pairs)
    axes.plot([0, most], [0, most], color="grey", linewidth=1, label="as measured")
    axes.scatter(*zip(*pairs, strict=True), s=14, label="a model, width and batch")
    axes.set_xlabel("measured peak, MB")
    axes.set_ylabel("predicted, MB")


def _time_lines(axes: Any, rows: Sequence[Row]) -> None:
    """Each device's rounds one after the other: what it trained, then the rest of its work."""
    devices = list(dict.fromkeys(str(row["device"]) for row in rows))
    for place, device in enumerate(devices):
        begin = 0.0
        for row in (row for row in rows if str(row["device"]) == device):
            trained, whole = float(row["training s"] or 0), float(row["s"] or 0)
            axes.barh(place, trained, left=begin, color="C0", edgecolor="white", linewidth=0.5)
            axes.barh(place, whole - trained, left=begin + trained, color="C1", edgecolor="white", linewidth=0.5)
            begin += whole
    for colour, label in (("C0", "training"), ("C1", "fetching, measuring, sending")):
        axes.barh([0], [0], color=colour, label=label)
    axes.set_yticks(range(len(devices)), devices, fontsize=7)
    axes.set_xlabel("seconds of work, round after round")


def _numbers(rows: Sequence[Row]) -> list[str]:
    """Columns that hold numbers only, without a paper's."""
    return [
        column
        for column in columns_of(rows)
        if not column.startswith(PAPER) and all(isinstance(row.get(column, 0.0), int | float) for row in rows)
    ]


def _sizes(columns: Sequence[str]) -> list[str]:
    """Columns named by a share of the parameters."""
    return [column for column in columns if column.replace(".", "", 1).isdigit() and 0 < float(column) <= 1]


def _cost(columns: Sequence[str]) -> tuple[str, str] | None:
    cost = next((column for column in BYTES if column in columns), None)
    good = next((column for column in GOOD if column in columns), None)
    return (cost, good) if cost is not None and good is not None else None


def _costs_of_devices(columns: Sequence[str]) -> bool:
    return sum(column in columns for column in PER_DEVICE) >= 2


def save_pictures(stem: Path, figures: Mapping[str, Any]) -> list[str]:
    """Write figures beside a result, each called by its kind; returns their file names."""
    written = []
    for kind, figure in figures.items():
        path = stem.with_name(f"{stem.stem}-{kind}.png")
        # Without a date in it, the same runs give the same file.
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
        written.append(path.name)
    return written
