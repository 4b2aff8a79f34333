"""A user's own data for a simulation, read as devices read it: one source to deal out, or one file per device."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.data import LocalData, load
from fedwright.device_runtime.data.graph import SUFFIX, inner_edges, side_by_side
from fedwright.device_runtime.data.sources import implied_goal, parse
from fedwright.device_runtime.equipment import SPLIT_SEED
from fedwright.protocol.errors import ConfigError, DataError
from fedwright.protocol.goals import CLASSIFY
from fedwright.protocol.topics import check_name
from fedwright.simulation.partition import Index, Share

# Before a folder: each file or folder in it is the data of one device, called by its name.
DEVICES = "devices:"
KINDS = (".npz", ".csv")
# Text is read in windows, whose length must be given.
TEXT = ".txt"


@dataclass(frozen=True)
class OwnExamples:
    """Examples in their own numbering of classes, the names of the classes if they have any, and edges between them.

    goal: what the labels are for. overlaps: how many windows of a series share moments with the one after them.
    """

    x: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
    y: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
    classes: int
    class_names: tuple[str, ...]
    edges: Index | None = None
    goal: str = CLASSIFY
    overlaps: int = 0


def is_one_per_device(source: str) -> bool:
    """Whether a source is a folder with one file per device."""
    return source.startswith(DEVICES)


def load_rows(source: str, *, goal: str, most: int | None, rng: np.random.Generator) -> OwnExamples:
    """All examples of a source, held-out ones too, or that many: drawn at random, or the first of a series."""
    found = load(_meant_for(source, goal), holdout_ratio=0.0, seed=SPLIT_SEED)
    check_goal(source, found.goal, goal)
    overlaps = _overlaps(source)
    x = np.concatenate([found.x, found.x_holdout]) if len(found.x_holdout) else found.x
    y, edges = np.concatenate([found.y, found.y_holdout]), found.edges
    if most is not None and most < len(y):
        rows = np.arange(most) if overlaps else np.sort(rng.choice(len(y), most, replace=False))
        x, y = x[rows], y[rows]
        edges = None if edges is None else inner_edges(edges, rows)
    return OwnExamples(x, y, found.classes, found.class_names, edges, found.goal, overlaps)


def check_goal(source: str, found: str, wanted: str) -> None:
    """Raise ConfigError when data is for another task than the run."""
    if found != wanted:
        raise ConfigError(
            f"{source!r} is data for the task {found}, but model.task is {wanted!r}; set model.task = {found!r}, or "
            "give other data"
        )


def _meant_for(source: str, goal: str) -> str:
    """The source with the run's task where it says nothing of its own."""
    if goal == CLASSIFY or "task" in parse(source)[2] or implied_goal(source) != CLASSIFY:
        return source
    return f"{source}{'&' if '?' in source else '?'}task={goal}"


def _overlaps(source: str) -> int:
    """How many windows of a series are lost between two that share no moment; 0 of what is no series."""
    options = parse(source)[2]
    lengths = [options.get(name, "") for name in ("window", "horizon")]
    return sum(map(int, lengths)) - 1 if all(text.isdecimal() for text in lengths) else 0


def load_devices(source: str, *, goal: str) -> dict[str, LocalData]:
    """The data of each device, split into training and held-out part as its agent splits it.

    What follows a question mark behind the folder holds for every file.
    """
    place, mark, query = source.removeprefix(DEVICES).partition("?")
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise DataError(f"simulate.data {source!r}: there is no folder {folder}; name one with one file per device")
    kinds = (*KINDS, TEXT) if "window=" in query else KINDS
    found: dict[str, LocalData] = {}
    for path in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        if not path.is_dir() and path.suffix not in kinds:
            raise DataError(f"{path}: is neither {' nor '.join(KINDS)} nor a folder; move it out of {folder}")
        device = path.name if path.is_dir() else path.name.removesuffix(SUFFIX).removesuffix(path.suffix)
        check_name(device, what=f"the name of {path}")
        if device in found:
            raise DataError(f"{path}: another file is the data of device {device} already; keep one of them")
        one = _meant_for(f"{'text:' if path.suffix == TEXT else ''}{path}{mark}{query}", goal)
        found[device] = load(one, holdout_ratio=AgentConfig.holdout_ratio, seed=SPLIT_SEED)
        check_goal(one, found[device].goal, goal)
    if not found:
        raise DataError(f"{folder}: is empty; put one .npz, .csv or folder per device into it")
    _check_alike(found)
    return found


def joined(devices: Mapping[str, LocalData]) -> tuple[OwnExamples, dict[str, Share]]:
    """The rows of all devices one after the other, each in its device's numbering, and who has which."""
    # Fractions on one device make the others' whole numbers measured ones, too.
    kind = np.float32 if any(data.x.dtype.kind == "f" for data in devices.values()) else np.int64
    parts_x, parts_y, shares, at = [], [], {}, 0
    for device, data in devices.items():
        train, test = at + np.arange(len(data.y)), at + len(data.y) + np.arange(len(data.y_holdout))
        shares[device] = Share(train=train, val=np.empty(0, np.int64), test=test)
        parts_x += [data.x.astype(kind, copy=False), data.x_holdout.astype(kind, copy=False)]
        parts_y += [data.y, data.y_holdout]
        at += len(train) + len(test)
    classes = max(data.classes for data in devices.values())
    edges = side_by_side((data.edges, len(data.y) + len(data.y_holdout)) for data in devices.values())
    goal = next(iter(devices.values())).goal
    return OwnExamples(np.concatenate(parts_x), np.concatenate(parts_y), classes, (), edges, goal), shares


def _check_alike(devices: Mapping[str, LocalData]) -> None:
    """Raise DataError when devices have samples of different shape."""
    first = next(iter(devices))
    for device, data in devices.items():
        if data.y.shape[1:] != devices[first].y.shape[1:]:
            raise DataError(
                f"the labels of device {device} have shape {list(data.y.shape[1:])} but those of {first} "
                f"{list(devices[first].y.shape[1:])}; bring all files to one shape"
            )
        if data.input_shape != devices[first].input_shape:
            raise DataError(
                f"the samples of device {device} have shape {list(data.input_shape)} but those of {first} "
                f"{list(devices[first].input_shape)}; bring all files to one shape"
            )
