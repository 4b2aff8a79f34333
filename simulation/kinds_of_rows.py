"""What partitions by class go by where labels are no single class."""

import numpy as np

from fedwright.protocol.goals import GOALS, MULTILABEL
from fedwright.simulation.partition import Index

# Numbers are sorted into so many kinds of equal size; text is cut into as many parts.
KINDS = 10


def kinds_of(y: np.ndarray[tuple[int, ...], np.dtype[np.generic]], goal: str) -> Index:
    """One whole number per row, without gaps: its class, or what stands in for it.

    Numbers: in which tenth of the first target it lies. Several labels: which combination of the first three it has.
    Masks: which class but that of most places it shows most of. Text: in which tenth of the text it stands.
    """
    if y.ndim == 1:
        return y.astype(np.int64)
    if goal == MULTILABEL:
        kinds = (y[:, :3].astype(np.int64) > 0) @ (1 << np.arange(min(3, y.shape[1])))
    elif GOALS[goal].numbers:
        kinds = np.argsort(np.argsort(y[:, 0], kind="stable"), kind="stable") * KINDS // len(y)
    elif GOALS[goal].first:
        kinds = _most_shown(y.reshape(len(y), -1).astype(np.int64))
    else:
        kinds = np.arange(len(y)) * KINDS // len(y)
    return np.asarray(np.unique(kinds, return_inverse=True)[1], np.int64)


def _most_shown(masks: Index) -> Index:
    """The class that fills most of each mask beside the one that fills most of them all."""
    classes = int(masks.max()) + 1
    counts = np.stack([(masks == label).sum(axis=1) for label in range(classes)], axis=1)
    ground = int(counts.sum(axis=0).argmax())
    shown = counts.copy()
    shown[:, ground] = 0
    return np.where(shown.any(axis=1), shown.argmax(axis=1), ground)
