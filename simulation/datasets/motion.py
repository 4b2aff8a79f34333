"""Phone motion data with a natural split by person: MotionSense and UCI HAR."""

import numpy as np

from fedwright.protocol.errors import DataError
from fedwright.simulation.datasets.base import Array, DataSet, Limit
from fedwright.simulation.datasets.files import Progress, Source, fetch, load_arrays

WINDOW = 128
STEP = 64
# Trials from this number on are the short ones, made to test on.
FIRST_SHORT_TRIAL = 11

MOTIONSENSE = Source("motionsense.npz", origin="github.com/mmalekzadeh/motion-sense (A_DeviceMotion_data)")
UCI_HAR = Source(
    "uci_har.npz", origin="archive.ics.uci.edu (Human Activity Recognition Using Smartphones, inertial signals)"
)


def load_motionsense(limit: Limit, progress: Progress | None) -> DataSet:
    """Windows [9, 128] of 24 people; each person's long trials train, the short ones test."""
    names = ("signal", "start", "length", "subject", "activity", "trial", "activities")
    path = fetch(MOTIONSENSE, progress)
    data = load_arrays(path, names)
    spans = np.stack([data["start"], data["length"]], axis=1).astype(np.int64)
    if (spans < 0).any() or spans.sum(axis=1).max(initial=0) > len(data["signal"]):
        raise DataError(f"{path} has recordings that lie outside its signal; get it again")
    short = data["trial"].astype(np.int64) >= FIRST_SHORT_TRIAL
    people = np.unique(data["subject"])
    owner = np.searchsorted(people, data["subject"]).astype(np.int64)
    labels = data["activity"].astype(np.int64)
    train = _windows(data["signal"], spans[~short], labels[~short], owner[~short])
    test = _windows(data["signal"], spans[short], labels[short], owner[short])
    classes, owners = _names(data["activities"]), _names(people)
    return _series("motionsense", (classes, owners), train, test, limit=limit)


def load_uci_har(limit: Limit, progress: Progress | None) -> DataSet:
    """Windows [9, 64] of 30 people in the official split: 21 people train, 9 others test. No commercial use."""
    parts = ("train", "test")
    names = [f"{kind}_{part}" for part in parts for kind in ("X", "y", "subject")]
    path = fetch(UCI_HAR, progress)
    data = load_arrays(path, [*names, "activities"])
    people = np.unique(np.concatenate([data["subject_train"], data["subject_test"]]))
    halves = [
        (
            data[f"X_{part}"].astype(np.float32),
            data[f"y_{part}"].astype(np.int64),
            np.searchsorted(people, data[f"subject_{part}"]).astype(np.int64),
        )
        for part in parts
    ]
    classes, owners = _names(data["activities"]), _names(people)
    return _series("uci-har", (classes, owners), halves[0], halves[1], limit=limit)


def _windows(signal: Array, spans: Array, labels: Array, owner: Array) -> tuple[Array, Array, Array]:
    """All whole windows of each recording, channels first, with the recording's label and owner."""
    views = [
        np.lib.stride_tricks.sliding_window_view(signal[start : start + length], WINDOW, axis=0)[::STEP]
        for start, length in spans.tolist()
        if length >= WINDOW
    ]
    counts = np.array([max(0, (length - WINDOW) // STEP + 1) for _, length in spans.tolist()], np.int64)
    channels = signal.shape[1]
    x = np.concatenate(views) if views else np.empty((0, channels, WINDOW), signal.dtype)
    return x.astype(np.float32), np.repeat(labels, counts), np.repeat(owner, counts)


def _series(
    name: str,
    names: tuple[tuple[str, ...], tuple[str, ...]],
    train: tuple[Array, Array, Array],
    test: tuple[Array, Array, Array],
    *,
    limit: Limit,
) -> DataSet:
    return DataSet(
        name=name,
        kind="series",
        x_train=train[0][: limit.train],
        y_train=train[1][: limit.train],
        x_test=test[0][: limit.test],
        y_test=test[1][: limit.test],
        classes=names[0],
        owners=names[1],
        owner_train=train[2][: limit.train],
        owner_test=test[2][: limit.test],
    )


def _names(values: Array) -> tuple[str, ...]:
    return tuple(str(value) for value in values.tolist())
