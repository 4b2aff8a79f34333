"""Linked clusters of different size teach each other's last layers (FedConv's edge servers).

Symbols: cluster i has the last layer F_i(x) = W_i x + b_i, W_i [C, d_i]; its features x_i [n, d_i] are what enters it,
with labels y_i and weights s_i. They cross once per round; P stays on the edge.

folded (default): o_i = F_i(x_i) + λ Σ_j W_j P_ij x_i over linked j, P_ij [d_j, d_i] from zero. W_i and P_ij follow the
cross-entropy of o_i at i's own labels. All of it is linear, so W_i + λ Σ_j W_j P_ij is one layer again and costs
nothing when the model is used.
eq8 (the paper's Eq. 8): o_i = F_i(x_i) + λ P_j x_j, o_j = F_j(x_j) + (1 - λ) P_i x_i with P_j [C, d_j], on samples
paired by label, for classes that both have; the term is dropped when the model is used.

Steps are those of gradient descent, each as long as `rate` of what the curvature of the cross-entropy allows, so that
the loss falls whatever the scale and number of the features; what is known already is hardly changed.

A cluster that is elsewhere, behind another edge, is known by its view: what has to cross for it to be linked and to
teach. Each edge changes its own clusters only, so that all edges together do what one with all clusters would.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.fedconv.clustering import softmax

Array = NDArray[Any]
Floats = NDArray[np.float64]
Pair = tuple[str, str]
Projections = dict[Pair, Floats]


@dataclass(frozen=True)
class Head:
    """A last layer: weight [C, d], bias [C]."""

    weight: Floats
    bias: Floats

    def logits(self, x: Floats) -> Floats:
        """W x + b for rows x [n, d]."""
        result: Floats = x @ self.weight.T + self.bias
        return result


@dataclass(frozen=True)
class ClassMeans:
    """What enters a last layer: x [n, d], labels y [n], weights s [n]; class means with their counts do."""

    x: Floats
    y: NDArray[np.int64]
    weight: Floats

    @classmethod
    def of(cls, means: Array, counts: Array) -> "ClassMeans":
        """Class means [C, d] of the classes that were seen."""
        seen = np.flatnonzero(counts > 0)
        return cls(means[seen].astype(np.float64), seen.astype(np.int64), counts[seen].astype(np.float64))


@dataclass(frozen=True)
class ClusterView:
    """What others need of a cluster: its last layer's weight [C, d], its answers by class, for eq8 its means."""

    weight: Floats
    answers: Mapping[int, Floats]
    means: ClassMeans | None = None

    @classmethod
    def of(cls, head: Head, means: ClassMeans, form: Literal["folded", "eq8"]) -> "ClusterView":
        """Class means stay where they are unless the form needs them."""
        return cls(head.weight, responses(head, means), means if form == "eq8" else None)


@dataclass(frozen=True)
class ExchangeOptions:
    """share: λ. quantile: share of the pairs that are linked, the most similar ones. rate: length of steps, below 2."""

    form: Literal["folded", "eq8"] = "folded"
    share: float = 0.5
    quantile: float = 0.25
    steps: int = 50
    rate: float = 1.0


def responses(head: Head, means: ClassMeans) -> dict[int, Floats]:
    """What a cluster answers for each of its classes: the mean of softmax(F(x)) over its class means [C]."""
    answers = softmax(head.logits(means.x)) * means.weight[:, None]
    return {
        int(label): answers[means.y == label].sum(axis=0) / means.weight[means.y == label].sum()
        for label in np.unique(means.y)
    }


def answer_divergence(one: Mapping[int, Floats], other: Mapping[int, Floats]) -> float:
    """Mean Jensen-Shannon divergence of two clusters' answers over the classes of both, 0 … ln 2; ∞ without any."""
    common = sorted(one.keys() & other.keys())
    if not common:
        return float("inf")
    p, q = (np.stack([answers[label] for label in common]) for answers in (one, other))
    return float(np.mean(_kl(p, (p + q) / 2) + _kl(q, (p + q) / 2)) / 2)


def _kl(p: Floats, q: Floats) -> Floats:
    result: Floats = (p * np.log(np.where(p > 0, p / np.where(q > 0, q, 1), 1))).sum(axis=-1)
    return result


def link(views: Mapping[str, ClusterView], *, quantile: float) -> list[Pair]:
    """Pairs of clusters of different size whose answers are most alike: the lowest `quantile` of them, at least one.

    Layers of different size are compared by what they answer for the classes of both, where weights cannot be.
    """
    found = {
        (one, other): answer_divergence(views[one].answers, views[other].answers)
        for one, other in combinations(sorted(views), 2)
        if views[one].weight.shape[1] != views[other].weight.shape[1]
    }
    usable = {pair: value for pair, value in found.items() if np.isfinite(value)}
    if not usable:
        return []
    limit = np.quantile(list(usable.values()), quantile)
    return [pair for pair, value in usable.items() if value <= limit]


def exchange(
    heads: Mapping[str, Head],
    means: Mapping[str, ClassMeans],
    *,
    options: ExchangeOptions,
    elsewhere: Mapping[str, ClusterView] | None = None,
    kept: Projections | None = None,
) -> tuple[dict[str, Head], Projections]:
    """The last layers of the clusters that are here, and the projections to keep (none where they are folded in).

    elsewhere: clusters of other edges, which teach and are not changed.
    """
    _check(heads, means)
    views = {name: ClusterView.of(head, means[name], options.form) for name, head in heads.items()}
    views = {**(elsewhere or {}), **views}
    pairs = link(views, quantile=options.quantile)
    if options.form == "eq8":
        return _exchange_eq8(heads, views, pairs, options, dict(kept or {}))
    after = dict(heads)
    for name in sorted(heads):
        linked = [other if one == name else one for one, other in pairs if name in (one, other)]
        if linked:
            after[name] = fold(heads[name], [views[other].weight for other in linked], means[name], options)
    return after, {}


def fold(head: Head, others: Sequence[Floats], means: ClassMeans, options: ExchangeOptions) -> Head:
    """W_i + λ Σ_j W_j P_ij after both W_i and P_ij followed the cross-entropy of o_i at i's labels.

    A gradient G [C, d_i] of the folded layer moves W_i along G and P_ij along λ W_jᵀ G. From P = 0 on, all that is
    learned is therefore Q = -Σ step G, with W_i + Q and P_ij = λ W_jᵀ Q, and the folded layer is W_i + (1 + λ² Σ_j
    W_j W_jᵀ) Q: the projections, which are as large as two layers are wide, need not be made.
    """
    mixing = np.eye(len(head.bias)) + options.share**2 * sum(other @ other.T for other in others)
    step = options.rate / (1 + np.linalg.norm(mixing, 2) * _square(means.x))
    learned, bias = np.zeros_like(head.weight), head.bias
    for _ in range(options.steps):
        logits = means.x @ (head.weight + mixing @ learned).T + bias
        slope = _slope(logits, means.y, means.weight)
        learned, bias = learned - step * slope.T @ means.x, bias - step * slope.sum(axis=0)
    return Head(head.weight + mixing @ learned, bias)


def _exchange_eq8(
    heads: Mapping[str, Head],
    views: Mapping[str, ClusterView],
    pairs: Sequence[Pair],
    options: ExchangeOptions,
    kept: Projections,
) -> tuple[dict[str, Head], Projections]:
    after = dict(heads)
    for one, other in pairs:
        first, second = views[one].means, views[other].means
        if first is None or second is None:
            continue
        left, right = aligned(first, second)
        for mine, yours, own, theirs, share in (
            (one, other, left, right, options.share),
            (other, one, right, left, 1 - options.share),
        ):
            if mine in heads and len(own.y):
                start = kept.get((yours, mine), np.zeros((len(after[mine].bias), theirs.x.shape[1])))
                after[mine], kept[yours, mine] = _learn_beside(after[mine], own, theirs.x, start, share, options)
    return after, kept


def _learn_beside(
    head: Head, own: ClassMeans, x_other: Floats, projection: Floats, share: float, options: ExchangeOptions
) -> tuple[Head, Floats]:
    """F_i and P_j after following the cross-entropy of F_i(x_i) + λ P_j x_j."""
    weight, bias = head.weight, head.bias
    step = options.rate / (1 + _square(own.x) + share**2 * _square(x_other))
    for _ in range(options.steps):
        slope = _slope(own.x @ weight.T + bias + share * x_other @ projection.T, own.y, own.weight)
        weight, bias = weight - step * slope.T @ own.x, bias - step * slope.sum(axis=0)
        projection = projection - step * share * slope.T @ x_other
    return Head(weight, bias), projection


def _square(x: Floats) -> float:
    """Largest squared length of a row: the curvature of the cross-entropy is at most half of it."""
    return float((x**2).sum(axis=1).max(initial=0.0))


def aligned(one: ClassMeans, other: ClassMeans) -> tuple[ClassMeans, ClassMeans]:
    """Rows of both paired by label, for classes that both have; the shorter side of a class is gone round again."""
    left: list[NDArray[np.int64]] = []
    right: list[NDArray[np.int64]] = []
    for label in np.intersect1d(one.y, other.y):
        mine, yours = np.flatnonzero(one.y == label), np.flatnonzero(other.y == label)
        count = max(len(mine), len(yours))
        left.append(np.resize(mine, count))
        right.append(np.resize(yours, count))
    rows = [np.concatenate(side) if side else np.zeros(0, np.int64) for side in (left, right)]
    first, second = (
        ClassMeans(given.x[chosen], given.y[chosen], given.weight[chosen])
        for given, chosen in zip((one, other), rows, strict=True)
    )
    return first, second


def cross_entropy(head: Head, means: ClassMeans) -> float:
    """Weighted mean of -log softmax(F(x))[y]."""
    logits = head.logits(means.x)
    logits = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(means.y)), means.y]
    return float((means.weight * losses).sum() / means.weight.sum())


def _slope(logits: Floats, y: NDArray[np.int64], weight: Floats) -> Floats:
    """dL/do [n, C] of the weighted mean cross-entropy."""
    chances = softmax(logits)
    chances[np.arange(len(y)), y] -= 1
    result: Floats = chances * (weight / weight.sum())[:, None]
    return result


def _check(heads: Mapping[str, Head], means: Mapping[str, ClassMeans]) -> None:
    for name, head in heads.items():
        entering = means[name].x.shape[1]
        if head.weight.shape[1] != entering:
            raise ConfigError(
                f"the last layer of {name} takes {head.weight.shape[1]} features but {entering} came; "
                f"use a model whose last layer is linear, or set exchange.form to 'off'"
            )
    classes = {len(head.bias) for head in heads.values()}
    if len(classes) > 1:
        raise ConfigError(f"last layers have {min(classes)} and {max(classes)} classes; exchange needs the same ones")
