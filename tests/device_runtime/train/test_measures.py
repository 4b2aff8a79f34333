"""What tasks are judged by, with numbers that can be checked by head."""

import numpy as np
import pytest

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
