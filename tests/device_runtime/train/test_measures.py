"""What tasks are judged by, with numbers that can be checked by head."""

from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from fedwright.device_runtime.train.measures import Measures
from fedwright.protocol.goals import GOALS


def test_numbers_in_two_batches() -> None:
    measures = Measures(GOALS["regress"])

    measures.add(np.array([[1.0], [2.0]], np.float32), np.array([[1.0], [4.0]], np.float32))
    measures.add(np.array([[5.0]], np.float32), np.array([[7.0]], np.float32))

    # errors 0, -2, -2; labels 1, 4, 7 are 18 about their mean
    loss, figures = measures.figures()
    assert loss == pytest.approx(8 / 3)
    assert figures == {
        "mae": pytest.approx(4 / 3),
        "rmse": pytest.approx((8 / 3) ** 0.5),
        "r2": pytest.approx(1 - 8 / 18),
    }


def test_a_constant_target_has_no_share_of_explained_variance() -> None:
    measures = Measures(GOALS["forecast"])
    measures.add(np.ones((2, 1), np.float32), np.full((2, 1), 3, np.float32))

    assert measures.figures()[1] == {"mae": 2.0, "rmse": 2.0}


def test_intersection_over_union_of_two_classes() -> None:
    labels = np.array([[[0, 0], [1, 1]]])
    said = np.array([[[0, 1], [1, 1]]])
    logits = np.stack([10.0 * (said == 0), 10.0 * (said == 1)], axis=1)
    measures = Measures(GOALS["segment"])

    measures.add(logits, labels)

    # class 0: 1 of 2; class 1: 2 of 3
    _, figures = measures.figures()
    assert figures == {"accuracy": 0.75, "iou": pytest.approx((1 / 2 + 2 / 3) / 2)}


def test_perplexity_of_no_knowledge_is_the_number_of_words() -> None:
    measures = Measures(GOALS["language"])
    measures.add(np.zeros((2, 3, 5), np.float32), np.zeros((2, 3), np.int64))

    loss, figures = measures.figures()
    assert loss == pytest.approx(np.log(5))
    assert figures["perplexity"] == pytest.approx(5)


def test_several_classes_at_once() -> None:
    scores = np.array([[2.0], [1.0], [1.0], [-3.0]])
    labels = np.array([[1.0], [0.0], [1.0], [0.0]])
    measures = Measures(GOALS["multilabel"])

    measures.add(scores[:1], labels[:1])
    measures.add(scores[1:], labels[1:])

    # said: yes yes yes no; 2 of 3 right and none missed; of four pairs three and a half are in order
    _, figures = measures.figures()
    assert figures == {"accuracy": 0.75, "f1": pytest.approx(0.8), "auc": pytest.approx(3.5 / 4)}


def test_nothing_held_out() -> None:
    assert Measures(GOALS["segment"]).figures() == (0.0, {})
    assert Measures(GOALS["multilabel"]).figures() == (0.0, {})


def _in_batches(goal: str, outputs: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> dict[str, float]:
    """What is said of samples that come in parts of unequal size."""
    measures = Measures(GOALS[goal])
    for rows in np.split(np.arange(len(labels)), [3, 10]):
        measures.add(outputs[rows].copy(), labels[rows])
    return measures.figures()[1]


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_numbers_as_scikit_learn_has_them(offset: float) -> None:
    rng = np.random.default_rng(0)
    labels = (rng.standard_normal((40, 3)) * [1, 5, 0.1] + offset).astype(np.float32)
    outputs = (labels + rng.standard_normal((40, 3))).astype(np.float32)

    figures = _in_batches("regress", outputs, labels)

    assert figures["mae"] == pytest.approx(metrics.mean_absolute_error(labels, outputs), rel=1e-6)
    # There the mean over targets comes after the root.
    squared = metrics.mean_squared_error(labels.ravel(), outputs.ravel())
    assert figures["rmse"] == pytest.approx(squared**0.5, rel=1e-6)
    explained = metrics.r2_score(labels, outputs, multioutput="variance_weighted")
    assert figures["r2"] == pytest.approx(explained, rel=1e-5)


def test_several_labels_as_scikit_learn_has_them() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (60, 4)).astype(np.float32)
    # Equal scores are part of it.
    outputs = np.round(labels + rng.standard_normal((60, 4)) - 0.5, 1)

    figures = _in_batches("multilabel", outputs, labels)

    said = outputs > 0
    assert figures["accuracy"] == pytest.approx(metrics.accuracy_score(labels.ravel(), said.ravel()))
    assert figures["f1"] == pytest.approx(metrics.f1_score(labels, said, average="micro"))
    assert figures["auc"] == pytest.approx(metrics.roc_auc_score(labels, outputs, average="macro"))


def test_masks_as_scikit_learn_has_them() -> None:
    rng = np.random.default_rng(2)
    # Of five classes one is neither there nor said.
    labels = rng.integers(0, 4, (20, 5, 5))
    outputs = rng.standard_normal((20, 5, 5, 5)).transpose(0, 3, 1, 2)
    outputs[:, 4] = -100

    figures = _in_batches("segment", outputs, labels)

    there, said = labels.ravel(), outputs.argmax(axis=1).ravel()
    assert figures["accuracy"] == pytest.approx(metrics.accuracy_score(there, said))
    assert figures["iou"] == pytest.approx(metrics.jaccard_score(there, said, average="macro"))


def test_perplexity_as_scikit_learn_has_it() -> None:
    rng = np.random.default_rng(3)
    labels, outputs = rng.integers(0, 7, (20, 6)), rng.standard_normal((20, 6, 7))

    figures = _in_batches("language", outputs, labels)

    chances = np.exp(outputs) / np.exp(outputs).sum(axis=-1, keepdims=True)
    loss = metrics.log_loss(labels.ravel(), chances.reshape(-1, 7), labels=range(7))
    assert figures["perplexity"] == pytest.approx(np.exp(loss))
