"""Last layers that teach each other: against torch, against numbers by hand, and what does not fit."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.fedconv.cluster_exchange import (
    ClassMeans,
    ClusterView,
    ExchangeOptions,
    Head,
    aligned,
    answer_divergence,
    cross_entropy,
    exchange,
    fold,
    link,
    responses,
)

OPTIONS = ExchangeOptions(steps=20, quantile=1.0)
CLASSES = 3


def features(
    width: int, *, labels: tuple[int, ...] = (0, 0, 1, 1, 2, 2), noise: float = 0.3, seed: int = 0
) -> ClassMeans:
    """Points near one corner per class."""
    rng = np.random.default_rng(seed)
    y = np.array(labels, np.int64)
    x = np.eye(width)[y] + noise * rng.normal(size=(len(y), width))
    return ClassMeans(x, y, rng.uniform(1, 5, len(y)))


def head(width: int, *, seed: int) -> Head:
    rng = np.random.default_rng(seed)
    return Head(rng.normal(size=(CLASSES, width)), rng.normal(size=CLASSES))


def views(heads: dict[str, Head], given: dict[str, ClassMeans]) -> dict[str, ClusterView]:
    """What others see of clusters."""
    return {name: ClusterView.of(one, given[name], "eq8") for name, one in heads.items()}


def test_folding_follows_torch() -> None:
    own, others, given = head(4, seed=1), [head(6, seed=2).weight, head(5, seed=3).weight], features(4)

    found = fold(own, others, given, OPTIONS)

    weight, bias = torch.tensor(own.weight, requires_grad=True), torch.tensor(own.bias, requires_grad=True)
    across = [torch.tensor(other) for other in others]
    projections = [torch.zeros(other.shape[1], 4, dtype=torch.float64, requires_grad=True) for other in others]
    x, y, share = torch.tensor(given.x), torch.tensor(given.y), torch.tensor(given.weight)
    longest = x.square().sum(1).max()
    spread = torch.linalg.matrix_norm(torch.cat(across, 1), 2) ** 2
    rate = 1 / (1 + (1 + OPTIONS.share**2 * spread) * longest)
    optimizer = torch.optim.SGD([weight, bias, *projections], lr=rate.item())
    for _ in range(OPTIONS.steps):
        optimizer.zero_grad()
        logits = x @ weight.T + bias
        for other, projection in zip(across, projections, strict=True):
            logits = logits + OPTIONS.share * (x @ projection.T) @ other.T
        losses = torch.nn.functional.cross_entropy(logits, y, reduction="none")
        ((losses * share).sum() / share.sum()).backward()
        optimizer.step()
    folded = weight + OPTIONS.share * sum(o @ p for o, p in zip(across, projections, strict=True))
    np.testing.assert_allclose(found.weight, folded.detach().numpy(), atol=1e-9)
    np.testing.assert_allclose(found.bias, bias.detach().numpy(), atol=1e-9)


@pytest.mark.parametrize("form", ["folded", "eq8"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_the_loss_falls_however_wide_and_large_the_features_are(form: Any, scale: float) -> None:
    heads = {"a": head(800, seed=1), "b": head(1600, seed=2)}
    given = {name: features(one.weight.shape[1], noise=1.0) for name, one in heads.items()}
    given = {name: replace(own, x=scale * own.x) for name, own in given.items()}
    options = replace(OPTIONS, form=form, rate=1.9)

    losses = []
    for _ in range(5):
        losses.append([cross_entropy(heads[name], given[name]) for name in heads])
        heads, _ = exchange(heads, given, options=options)

    assert all(later <= earlier for own in zip(*losses, strict=True) for earlier, later in pairwise(own))
    assert losses[-1] != losses[0]


def test_what_is_known_already_is_hardly_changed() -> None:
    given = {"a": features(4, noise=0.0), "b": features(7, noise=0.0)}
    heads = {name: Head(20 * np.eye(CLASSES, own.x.shape[1]), np.zeros(CLASSES)) for name, own in given.items()}

    after, _ = exchange(heads, given, options=OPTIONS)

    assert all(np.abs(after[name].weight - heads[name].weight).max() < 1e-6 for name in heads)


def test_the_folded_layer_is_one_layer_of_the_same_size() -> None:
    heads, given = {"a": head(4, seed=1), "b": head(7, seed=2)}, {"a": features(4), "b": features(7, seed=1)}

    after, kept = exchange(heads, given, options=OPTIONS)

    assert kept == {}
    assert {name: one.weight.shape for name, one in after.items()} == {"a": (3, 4), "b": (3, 7)}
    for name in heads:
        assert cross_entropy(after[name], given[name]) < cross_entropy(heads[name], given[name])


def test_what_is_not_linked_stays() -> None:
    heads = {"a": head(4, seed=1), "b": head(7, seed=2), "c": head(5, seed=3)}
    given = {"a": features(4), "b": features(7), "c": features(5, labels=())}

    after, _ = exchange(heads, given, options=OPTIONS)

    assert after["c"] is heads["c"]


def test_eq8_keeps_projections_and_learns_from_paired_labels() -> None:
    heads, given = {"a": head(4, seed=1), "b": head(7, seed=2)}, {"a": features(4), "b": features(7, seed=1)}
    options = replace(OPTIONS, form="eq8")

    once, kept = exchange(heads, given, options=options)
    twice, _ = exchange(once, given, options=options, kept=kept)

    assert {pair: value.shape for pair, value in kept.items()} == {("b", "a"): (3, 7), ("a", "b"): (3, 4)}
    assert all(np.abs(value).max() > 0 for value in kept.values())
    assert cross_entropy(twice["a"], given["a"]) < cross_entropy(heads["a"], given["a"])


@pytest.mark.parametrize("form", ["folded", "eq8"])
def test_clusters_that_are_elsewhere_teach_as_if_they_were_here(form: Any) -> None:
    heads = {"a": head(4, seed=1), "b": head(7, seed=2), "c": head(5, seed=3)}
    given = {name: features(one.weight.shape[1], seed=number) for number, (name, one) in enumerate(heads.items())}
    options = replace(OPTIONS, form=form, quantile=0.6)
    whole, kept = exchange(heads, given, options=options)

    for name, one in heads.items():
        others = {other: ClusterView.of(heads[other], given[other], form) for other in heads if other != name}
        after, own = exchange({name: one}, {name: given[name]}, options=options, elsewhere=others)

        assert after.keys() == {name}
        np.testing.assert_array_equal(after[name].weight, whole[name].weight)
        assert own.keys() == {pair for pair in kept if pair[1] == name}
    assert any(whole[name] is not heads[name] for name in heads)


def test_eq8_leaves_clusters_alone_whose_features_stayed_where_they_are() -> None:
    heads, given = {"a": head(4, seed=1)}, {"a": features(4)}
    elsewhere = {"b": ClusterView.of(head(7, seed=2), features(7), "folded")}

    after, kept = exchange(heads, given, options=replace(OPTIONS, form="eq8"), elsewhere=elsewhere)

    assert (after, kept) == (heads, {})


def test_batches_are_aligned_by_label() -> None:
    one = ClassMeans(np.arange(5.0)[:, None], np.array([0, 0, 0, 1, 2]), np.ones(5))
    other = ClassMeans(np.arange(3.0)[:, None], np.array([2, 0, 0]), np.ones(3))

    left, right = aligned(one, other)

    assert left.y.tolist() == right.y.tolist() == [0, 0, 0, 2]
    assert right.x[:, 0].tolist() == [1.0, 2.0, 1.0, 0.0]


def test_clusters_without_a_common_class_do_not_disturb_each_other() -> None:
    heads = {"a": head(4, seed=1), "b": head(7, seed=2)}
    given = {"a": features(4, labels=(0, 0)), "b": features(7, labels=(1, 2))}

    assert link(views(heads, given), quantile=1.0) == []
    after, kept = exchange(heads, given, options=replace(OPTIONS, form="eq8"))
    assert (after, kept) == (heads, {})


def test_divergence_by_hand() -> None:
    left, right = {0: np.array([1.0, 0.0])}, {0: np.array([0.0, 1.0]), 1: np.array([0.5, 0.5])}

    assert answer_divergence(left, left) == 0
    assert answer_divergence(left, right) == pytest.approx(np.log(2))
    assert answer_divergence(left, {1: np.array([1.0, 0.0])}) == float("inf")


def test_answers_weigh_features_by_their_weight() -> None:
    given = ClassMeans(np.array([[0.0], [np.log(3)]]), np.array([0, 0]), np.array([1.0, 3.0]))
    layer = Head(np.array([[1.0], [0.0]]), np.zeros(2))

    # softmax gives (1/2, 1/2) and (3/4, 1/4); weights 1 and 3.
    np.testing.assert_allclose(responses(layer, given)[0], [0.6875, 0.3125])


def test_the_most_similar_of_different_size_are_linked() -> None:
    good = {width: Head(5 * np.eye(CLASSES, width), np.zeros(CLASSES)) for width in (3, 4, 5)}
    bad = Head(np.roll(good[5].weight, 1, axis=0), np.zeros(CLASSES))
    heads = {"a": good[3], "b": good[4], "c": good[4], "d": bad}
    given = {name: features(layer.weight.shape[1], noise=0.0) for name, layer in heads.items()}

    assert link(views(heads, given), quantile=0.25) == [("a", "b"), ("a", "c")]


def test_class_means_of_the_classes_that_were_seen() -> None:
    found = ClassMeans.of(np.arange(6, dtype=np.float32).reshape(3, 2), np.array([4, 0, 1], np.float32))

    assert found.y.tolist() == [0, 2]
    assert found.x.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert found.weight.tolist() == [4.0, 1.0]


def test_features_that_do_not_fit_the_layer() -> None:
    with pytest.raises(ConfigError, match="last layer of a takes 4 features but 5 came; use a model"):
        exchange({"a": head(4, seed=1)}, {"a": features(5)}, options=OPTIONS)


def test_layers_of_different_classes() -> None:
    heads = {"a": head(4, seed=1), "b": Head(np.zeros((2, 4)), np.zeros(2))}

    with pytest.raises(ConfigError, match="2 and 3 classes"):
        exchange(heads, {"a": features(4), "b": features(4)}, options=OPTIONS)
