"""The training loop: order, restart, stop, and its three sums checked by hand."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.train import loop
from fedwright.device_runtime.train.base import StepResult
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.messages import Recipe
from helpers.tiny_artifact import CLASSES, FEATURES, make_artifact, start_weights


class Recorder(PortableTrainer):
    """A trainer that only remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.seeds: list[int] = []

    def step(self, batch: dict[str, NDArray[Any]], *, learning_rate: float, seed: int) -> StepResult:
        self.batches.append(batch["y"].tolist())
        self.seeds.append(seed)
        return StepResult(loss=float(len(self.batches)), correct=0)

    def predict(self, batch: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
        return batch["x"], batch["x"] * 2


def local_data(n: int = 10, holdout: int = 3) -> LocalData:
    rng = np.random.default_rng(1)
    labels = np.arange(n) % CLASSES
    return LocalData(
        x=rng.normal(size=(n, FEATURES)).astype(np.float32),
        y=labels,
        x_holdout=np.array([[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 0, 0]], np.float32)[:holdout],
        y_holdout=np.array([0, 0, 1])[:holdout],
        classes=CLASSES,
        class_counts=tuple(np.bincount(labels, minlength=CLASSES).tolist()),
        input_shape=(FEATURES,),
    )


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{"batch": 4, "learning_rate": 0.1, "seed": 7, "epochs": 2, **changes})


def numbered(n: int = 10) -> LocalData:
    """Data whose label is the row number."""
    data = local_data(n)
    return LocalData(data.x, np.arange(n), data.x_holdout, data.y_holdout, n, (1,) * n, data.input_shape)


def test_every_epoch_visits_every_sample_once_with_a_last_small_batch() -> None:
    trainer = Recorder()
    result = loop.train(trainer, numbered(), recipe())

    assert [len(batch) for batch in trainer.batches] == [4, 4, 2, 4, 4, 2]
    assert sorted(chain(*trainer.batches[:3])) == list(range(10))
    assert sorted(chain(*trainer.batches[3:])) == list(range(10))
    assert trainer.batches[:3] != trainer.batches[3:]
    assert len(set(trainer.seeds)) == 6
    assert (result.steps, result.samples, result.finished) == (6, 10, True)
    assert (result.loss_first, result.loss_last) == (1.0, 6.0)


def test_steps_overrule_epochs_and_zero_epochs_do_nothing() -> None:
    few, none = Recorder(), Recorder()
    loop.train(few, numbered(), recipe(steps=4))
    result = loop.train(none, numbered(), recipe(epochs=0))

    assert len(few.batches) == 4
    assert none.batches == []
    assert (result.loss_first, result.loss_last, result.finished) == (None, None, True)


def test_a_restart_at_any_step_sees_the_rest_of_the_same_order() -> None:
    whole = Recorder()
    loop.train(whole, numbered(), recipe())
    for start in range(7):
        rest = Recorder()
        loop.train(rest, numbered(), recipe(), span=loop.Span(start))
        assert rest.batches == whole.batches[start:]
        assert rest.seeds == whole.seeds[start:]


def test_another_seed_gives_another_order() -> None:
    one, other = Recorder(), Recorder()
    loop.train(one, numbered(), recipe())
    loop.train(other, numbered(), recipe(seed=8))
    assert one.batches != other.batches


def test_stop_is_obeyed_before_the_next_step() -> None:
    trainer, done = Recorder(), []
    result = loop.train(
        trainer,
        numbered(),
        recipe(),
        on_step=lambda step, _: done.append(step),
        should_stop=lambda: len(done) == 2,
    )
    assert done == [1, 2]
    assert (result.steps, result.finished) == (2, False)


def test_resume_from_a_snapshot_ends_at_the_same_bits() -> None:
    data = local_data()
    straight, first, second = (PortableTrainer(make_artifact()) for _ in range(3))
    straight.load(start_weights())
    loop.train(straight, data, recipe())

    first.load(start_weights())
    done = []
    loop.train(first, data, recipe(), on_step=lambda step, _: done.append(step), should_stop=lambda: len(done) == 3)
    second.restore(first.snapshot())
    loop.train(second, data, recipe(), span=loop.Span(3))

    assert all(np.array_equal(straight.snapshot()[name], second.snapshot()[name]) for name in ("W", "b", "vW"))


def test_evaluation_counts_and_loss_by_hand() -> None:
    correct, n, loss, _ = loop.evaluate(Recorder(), local_data(), batch=2)

    sure = np.log(np.exp(9) + 3)
    assert (correct, n) == (1, 3)
    assert loss == pytest.approx(((sure - 9) + sure + np.log(4)) / 3)


def test_evaluation_of_nothing_is_zero() -> None:
    assert loop.evaluate(Recorder(), local_data(holdout=0)) == loop.Evaluation(0, 0, 0.0)


def test_prototypes_are_class_means_and_absent_classes_are_zero() -> None:
    data = LocalData(
        x=np.array([[1, 2, 3], [3, 2, 1], [5, 5, 5]], np.float32),
        y=np.array([0, 0, 2]),
        x_holdout=np.zeros((0, 3), np.float32),
        y_holdout=np.zeros(0, np.int64),
        classes=4,
        class_counts=(2, 0, 1, 0),
        input_shape=(3,),
    )
    means, counts = loop.class_means(Recorder(), data, batch=2)

    assert means.tolist() == [[4, 4, 4], [0, 0, 0], [10, 10, 10], [0, 0, 0]]
    assert counts.tolist() == [2, 0, 1, 0]


def test_class_means_of_a_device_that_knows_fewer_classes_than_the_model() -> None:
    """The server asks for one of every class of the model."""
    rows = np.array([[1, 2, 3], [3, 2, 1]], np.float32)
    data = LocalData(rows, np.array([0, 1]), rows[:0], np.zeros(0, np.int64), 2, (1, 1), (3,))

    means, counts = loop.class_means(Recorder(), data, batch=2)

    assert means.tolist() == [[2, 4, 6], [6, 4, 2], [0, 0, 0]]
    assert counts.tolist() == [1, 1, 0]


def test_what_is_left_over_is_left_out_when_it_is_less_than_a_batch_may_be() -> None:
    seen: list[int] = []

    class Counting(Recorder):
        def step(self, batch: Any, *, learning_rate: float, seed: int) -> Any:
            seen.append(len(batch["y"]))
            return super().step(batch, learning_rate=learning_rate, seed=seed)

    samples = len(numbered().y)
    loop.train(Counting(), numbered(), recipe(batch=samples - 1, epochs=2), span=loop.Span(least_batch=2))

    assert seen == [samples - 1, samples - 1]
