"""Error feedback on the device: what was left out comes back, once, and only after it was really used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.protocol import deltas, tensors
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.messages import Recipe, Returns, Task

SHAPES = {"w": (64, 5)}
COUNTS = np.array([400, 1, 30, 0], np.float32)
MEASURED = {
    "prototypes": np.array([[100, 0.01], [0.3, 0.2], [-7, 1e-4], [0, 0]], np.float32),
    "prototype_counts": COUNTS,
    "public_logits": np.array([[90, -0.1, 0.2, 0.3]] * 70, np.float32),
}
SMALL = {
    "int8": Returns(codec="int8"),
    "bf16": Returns(codec="bf16"),
    "top fifth": Returns(keep_ratio=0.2),
    "int8 top fifth": Returns(codec="int8", keep_ratio=0.2),
}


def task(returns: Returns, *, artifact: bytes = b"graph") -> Task:
    recipe = Recipe(batch=8, learning_rate=0.1, seed=3)
    return Task("t", "boot", "run", 1, make_ref(artifact), make_ref(b"w"), recipe, returns, deadline_s=5.0)


def sent(residual: ErrorFeedback, asked: Task, delta: np.ndarray) -> np.ndarray:
    return deltas.decode(residual.encode(asked, {"w": delta}), SHAPES)["w"]


@pytest.fixture
def delta() -> NDArray[Any]:
    return np.random.default_rng(0).normal(size=SHAPES["w"]).astype(np.float32)


@pytest.mark.parametrize(
    "returns",
    [Returns(codec="int8"), Returns(codec="bf16"), Returns(keep_ratio=0.1), Returns(codec="int8", keep_ratio=0.25)],
    ids=["int8", "bf16", "top tenth", "int8 top quarter"],
)
def test_over_many_rounds_nothing_is_lost(tmp_path: Path, delta: NDArray[Any], returns: Returns) -> None:
    residual = ErrorFeedback(tmp_path)
    total = np.zeros_like(delta)
    rounds = 40
    for _ in range(rounds):
        total += sent(residual, task(returns), delta)
        residual.settle("t", used=True)

    # Without feedback the error would grow with the rounds; with it one round's rest is all that is owed.
    error = np.abs(total - rounds * delta).max()
    one_round = np.abs(deltas.decode(deltas.encode({"w": delta}, codec=returns.codec), SHAPES)["w"] - delta).max()
    owed = one_round if returns.keep_ratio == 1.0 else np.abs(delta).max() / returns.keep_ratio
    assert error <= 2 * owed


def test_a_task_that_is_done_again_after_a_crash_sends_the_same(tmp_path: Path, delta: NDArray[Any]) -> None:
    residual = ErrorFeedback(tmp_path)
    asked = task(Returns(codec="int8"))
    sent(residual, asked, delta)
    residual.settle("t", used=True)

    first = residual.encode(asked, {"w": delta})
    again = ErrorFeedback(tmp_path).encode(asked, {"w": delta})

    assert first == again


def test_what_the_server_did_not_use_is_not_owed(tmp_path: Path, delta: NDArray[Any]) -> None:
    residual = ErrorFeedback(tmp_path)
    asked = task(Returns(codec="int8"))
    first = residual.encode(asked, {"w": delta})
    residual.settle("t", used=False)
    assert residual.encode(asked, {"w": delta}) == first


def test_another_structure_starts_without_a_residual(tmp_path: Path, delta: NDArray[Any]) -> None:
    residual = ErrorFeedback(tmp_path)
    sent(residual, task(Returns(codec="int8")), delta)
    residual.settle("t", used=True)
    other = task(Returns(codec="int8"), artifact=b"another graph")
    assert residual.encode(other, {"w": delta}) == deltas.encode({"w": delta}, codec="int8")


def test_whole_weights_are_sent_exactly(tmp_path: Path, delta: NDArray[Any]) -> None:
    asked = task(Returns(weights="weights", codec="int8"))
    np.testing.assert_array_equal(sent(ErrorFeedback(tmp_path), asked, delta), delta)


@pytest.mark.parametrize("codec", SMALL)
@pytest.mark.parametrize("masked", [False, True], ids=["changes", "masked"])
def test_what_a_device_measured_comes_as_it_is(tmp_path: Path, delta: NDArray[Any], codec: str, masked: bool) -> None:
    residual = ErrorFeedback(tmp_path)
    shapes = SHAPES | {name: value.shape for name, value in MEASURED.items()}
    masks = {"w": np.eye(64, 5, dtype=bool)} if masked else None
    asked = task(structs.replace(SMALL[codec], class_means=True, logits=70, masked=masked))
    for _ in range(2):
        blob = residual.encode(asked, {"w": delta, **MEASURED}, masks)
        residual.settle("t", used=True)
        found = deltas.decode(blob, shapes, sent=masks)

        for name, value in MEASURED.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_only_changes_are_owed(tmp_path: Path, delta: NDArray[Any]) -> None:
    ErrorFeedback(tmp_path).encode(task(Returns(codec="int8", class_means=True, logits=70)), {"w": delta, **MEASURED})
    assert tensors.load(tmp_path / "residual.next").keys() == {"w"}


def test_what_an_older_agent_owes_of_class_means_is_forgotten(tmp_path: Path, delta: NDArray[Any]) -> None:
    asked = task(Returns(codec="int8", class_means=True))
    owed = tensors.save({"prototype_counts": COUNTS}, {"artifact": asked.artifact.sha256})
    (tmp_path / "residual").write_bytes(owed)
    found = deltas.load(ErrorFeedback(tmp_path).encode(asked, {"w": delta, "prototype_counts": COUNTS}))[0]
    np.testing.assert_array_equal(found["prototype_counts"], COUNTS)


def test_the_word_on_another_task_settles_nothing_of_this_one(tmp_path: Path, delta: NDArray[Any]) -> None:
    residual = ErrorFeedback(tmp_path)
    asked = task(Returns(codec="int8"))
    first = residual.encode(asked, {"w": delta})
    residual.settle("another", used=True)

    assert residual.encode(asked, {"w": delta}) == first


def test_what_is_owed_in_one_run_is_not_paid_in_another(tmp_path: Path, delta: NDArray[Any]) -> None:
    residual, returns = ErrorFeedback(tmp_path), Returns(codec="int8")
    first, second = (structs.replace(task(returns), run_identity=name) for name in ("aa", "bb"))
    (tmp_path / "alone").mkdir()
    alone = sent(ErrorFeedback(tmp_path / "alone"), second, delta)
    sent(residual, first, delta)
    residual.settle("t", used=True)

    assert not np.array_equal(sent(residual, first, delta), alone)
    np.testing.assert_array_equal(sent(residual, second, delta), alone)
