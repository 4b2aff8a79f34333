"""How well a model does what it is for, on held-out samples: sums over batches, then a few figures."""

import numpy as np
from numpy.typing import NDArray

from fedwright.device_runtime.train.base import Array
from fedwright.protocol.goals import Goal


class Measures:
    """Collects outputs and labels of a goal that is not single classes; keeps sums, and scores where ranks count."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._sums: NDArray[np.float64] | None = None
        self._scores: list[tuple[Array, Array]] = []

    def add(self, outputs: Array, labels: Array) -> None:
        """One batch."""
        if self._goal.numbers:
            rows = outputs.reshape(len(outputs), -1).astype(np.float64)
            if rows.shape != labels.shape:
                # A loss of the user's own reads something else from them, say spreads or quantiles.
                return
            if self._goal.name == "multilabel":
                self._scores.append((rows, labels))
                return
            self._take(_moments(rows, labels.astype(np.float64)))
            return
        places = np.moveaxis(outputs, 1, -1) if self._goal.first else outputs
        self._take(_confusion(places.reshape(-1, places.shape[-1]).astype(np.float64), labels.reshape(-1)))

    def _take(self, sums: NDArray[np.float64]) -> None:
        self._sums = sums if self._sums is None else self._sums + sums

    def figures(self) -> tuple[float, dict[str, float]]:
        """The loss that was trained for, and the goal's measures; nothing of no samples."""
        if self._goal.name == "multilabel" and self._scores:
            scores, labels = (np.concatenate(parts) for parts in zip(*self._scores, strict=True))
            return _multilabel(scores, labels.astype(np.float64))
        if self._sums is None:
            return 0.0, {}
        return _numbers(self._sums) if self._goal.numbers else _places(self._sums, self._goal)


def _moments(outputs: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """[targets, 5]: how many, |error|, error^2, label, label^2."""
    away = outputs - labels
    ones = np.ones_like(away)
    return np.stack([part.sum(axis=0) for part in (ones, np.abs(away), away**2, labels, labels**2)], axis=1)


def _numbers(sums: NDArray[np.float64]) -> tuple[float, dict[str, float]]:
    """R^2 is that of all targets together, each about its own mean."""
    count, absolute, squared, label, label_squared = sums.T
    spread = float((label_squared - label**2 / count).sum())
    mean = float(squared.sum() / count.sum())
    figures = {"mae": float(absolute.sum() / count.sum()), "rmse": mean**0.5}
    if spread > 0:
        figures["r2"] = 1 - float(squared.sum()) / spread
    return mean, figures


def _confusion(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """[classes + 1, classes]: how often a class was taken for which; in the last row first the sum of losses."""
    classes = logits.shape[1]
    pairs = labels * classes + logits.argmax(axis=1)
    table = np.zeros((classes + 1, classes))
    table[:classes] = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[np.arange(len(labels)), labels]
    table[classes, 0] = float((np.log(np.exp(logits).sum(axis=1)) - picked).sum())
    return table


def _places(sums: NDArray[np.float64], goal: Goal) -> tuple[float, dict[str, float]]:
    table, total = sums[:-1], float(sums[:-1].sum())
    loss, right = float(sums[-1, 0]) / total, np.diag(table)
    union = table.sum(axis=0) + table.sum(axis=1) - right
    figures = {"accuracy": float(right.sum()) / total}
    if "iou" in goal.measures:
        figures["iou"] = float((right[union > 0] / union[union > 0]).mean())
    if "perplexity" in goal.measures:
        figures["perplexity"] = float(np.exp(min(loss, 700.0)))
    return loss, figures


def _multilabel(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> tuple[float, dict[str, float]]:
    """F1 over all entries; the area under the curve is the mean over classes that have both kinds."""
    loss = float(np.mean(np.logaddexp(0, scores) - scores * labels))
    said = scores > 0
    hits = float((said * labels).sum())
    figures = {"accuracy": float((said == labels).mean())}
    figures["f1"] = 2 * hits / max(float(said.sum() + labels.sum()), 1.0)
    areas = [_area(column, wanted) for column, wanted in zip(scores.T, labels.T, strict=True) if 0 < wanted.mean() < 1]
    if areas:
        figures["auc"] = float(np.mean(areas))
    return loss, figures


def _area(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """The share of pairs (one with, one without) in which the one with scores higher; equal scores count half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    ones = float(labels.sum())
    return float((ranks[labels > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(labels) - ones)))
