"""Labels that are no single class: numbers to predict, several classes at once, a class at every place."""

import numpy as np

from fedwright.device_runtime.data.labels import count_classes
from fedwright.device_runtime.data.local import Array, Labels, Raw
from fedwright.protocol.errors import DataError
from fedwright.protocol.goals import Goal


def read_targets(raw: Raw, goal: Goal, *, where: str) -> tuple[list[Array], int]:
    """The labels of each part of the data, checked, and how many outputs or classes they speak of."""
    parts = [raw.y] if raw.y_holdout is None else [raw.y, raw.y_holdout]
    if goal.numbers:
        made = [_numbers(part, goal, where=where) for part in parts]
        if len({part.shape[1] for part in made}) > 1:
            raise DataError(f"{where}: y and y_holdout have different numbers of targets; give both the same columns")
        return list(made), made[0].shape[1]
    places = [_places(part, goal, where=where) for part in parts]
    return list(places), count_classes(raw.classes, places, where=where)


def counts_of(y: Array, outputs: int) -> tuple[int, ...]:
    """How many labels there are of each class; of numbers, as many as there are samples."""
    if y.dtype.kind == "f":
        return (len(y),) * outputs
    return tuple(np.bincount(np.asarray(y, np.int64).reshape(-1), minlength=outputs).tolist())


def _numbers(y: Array, goal: Goal, *, where: str) -> Array:
    if y.dtype.kind not in "fiub" or y.ndim not in (1, 2) or 0 in y.shape[1:]:
        raise DataError(
            f"{where}: y of type {y.dtype} and shape {list(y.shape)} is nothing to {goal.name}; give numbers of shape"
            " [samples] or [samples, targets]"
        )
    made = np.asarray(y, np.float32).reshape(len(y), -1)
    if not np.isfinite(made).all():
        row = int(np.argmin(np.isfinite(made).all(axis=1)))
        raise DataError(f"{where}: y has a value that is NaN or infinite in sample {row}; clean or drop it")
    if goal.name == "multilabel" and not np.isin(made, (0, 1)).all():
        raise DataError(f"{where}: multilabel takes one column of 0 and 1 per class; y holds other numbers")
    return made


def _places(y: Array, goal: Goal, *, where: str) -> Labels:
    if y.dtype.kind not in "iu" or y.ndim < 2:
        raise DataError(
            f"{where}: y of type {y.dtype} and shape {list(y.shape)} is nothing to {goal.name}; give whole numbers of"
            " shape [samples, places...], a class at every place"
        )
    return y.astype(np.int64)
