"""Error feedback on the device: what was left out comes back, once, and only after it was really used."""

import numpy as np
import pytest

from fedwright.device_runtime.store.residual import Residual
from fedwright.protocol import deltas
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.messages import Recipe, Returns, Task

SHAPES = {"w": (64, 5)}


def task(returns: Returns, *, artifact: bytes = b"graph") -> Task:
    recipe = Recipe(batch=8, learning_rate=0.1, seed=3)
    return Task("t", "boot", "run", 1, make_ref(artifact), make_ref(b"w"), recipe, returns, deadline_s=5.0)


def sent(residual: Residual, asked: Task, delta: np.ndarray) -> np.ndarray:
    return deltas.decode(residual.encode(asked, {"w": delta}), SHAPES)["w"]


@pytest.fixture
def delta():
    return np.random.default_rng(0).normal(size=SHAPES["w"]).astype(np.float32)


@pytest.mark.parametrize(
    "returns",
    [Returns(codec="int8"), Returns(codec="bf16"), Returns(keep_ratio=0.1), Returns(codec="int8", keep_ratio=0.25)],
    ids=["int8", "bf16", "top tenth", "int8 top quarter"],
)
def test_over_many_rounds_nothing_is_lost(tmp_path, delta, returns):
    residual = Residual(tmp_path)
    total = np.zeros_like(delta)
    rounds = 40
    for _ in range(rounds):
        total += sent(residual, task(returns), delta)
        residual.settle(used=True)

    # Without feedback the error would grow with the rounds; with it one round's rest is all that is owed.
    error = np.abs(total - rounds * delta).max()
    one_round = np.abs(deltas.decode(deltas.encode({"w": delta}, codec=returns.codec), SHAPES)["w"] - delta).max()
    owed = one_round if returns.keep_ratio == 1.0 else np.abs(delta).max() / returns.keep_ratio
    assert error <= 2 * owed


def test_a_task_that_is_done_again_after_a_crash_sends_the_same(tmp_path, delta):
    residual = Residual(tmp_path)
    asked = task(Returns(codec="int8"))
    sent(residual, asked, delta)
    residual.settle(used=True)

    first = residual.encode(asked, {"w": delta})
    again = Residual(tmp_path).encode(asked, {"w": delta})

    assert first == again


def test_what_the_server_did_not_use_is_not_owed(tmp_path, delta):
    residual = Residual(tmp_path)
    asked = task(Returns(codec="int8"))
    first = residual.encode(asked, {"w": delta})
    residual.settle(used=False)
    assert residual.encode(asked, {"w": delta}) == first


def test_another_structure_starts_without_a_residual(tmp_path, delta):
    residual = Residual(tmp_path)
    sent(residual, task(Returns(codec="int8")), delta)
    residual.settle(used=True)
    other = task(Returns(codec="int8"), artifact=b"another graph")
    assert residual.encode(other, {"w": delta}) == deltas.encode({"w": delta}, codec="int8")


def test_whole_weights_are_sent_exactly(tmp_path, delta):
    asked = task(Returns(weights="weights", codec="int8"))
    np.testing.assert_array_equal(sent(Residual(tmp_path), asked, delta), delta)
