"""The portable trainer against numpy arithmetic written out by hand."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime.train import session as sessions
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.artifact import SUPPLIED, TensorSpec
from fedwright.protocol.errors import BadArtifact, BadBlob, ConfigError, DataError
from helpers.tiny_artifact import CLASSES, FEATURES, MOMENTUM, make_artifact, start_weights, train_model


def batch(n: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(n, FEATURES)).astype(np.float32), "y": rng.integers(0, CLASSES, n)}


def trained(steps: int) -> PortableTrainer:
    """A trainer of the plain tiny artifact after some steps."""
    trainer = PortableTrainer(make_artifact())
    trainer.load(start_weights())
    for number in range(steps):
        trainer.step(batch(5, seed=number), learning_rate=0.1, seed=number)
    return trainer


def reference_step(
    w: NDArray[Any], b: NDArray[Any], v: NDArray[Any], data: dict[str, NDArray[Any]], rate: float
) -> tuple[Any, ...]:
    logits = data["x"].astype(np.float64) @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    n = len(data["y"])
    loss = -np.log(p[np.arange(n), data["y"]]).mean()
    correct = int((logits.argmax(1) == data["y"]).sum())
    d = (p - np.eye(CLASSES)[data["y"]]) / n
    v = MOMENTUM * v + data["x"].T @ d
    return w - rate * v, b - rate * d.sum(0), v, loss, correct


def test_steps_match_numpy_at_changing_batch_sizes() -> None:
    trainer = PortableTrainer(make_artifact())
    start = start_weights()
    trainer.load(start)
    w, b, v = start["W"].astype(np.float64), start["b"].astype(np.float64), np.zeros((FEATURES, CLASSES))

    for number, size in enumerate([8, 8, 3, 1, 8]):
        data = batch(size, seed=number)
        result = trainer.step(data, learning_rate=0.1, seed=number)
        w, b, v, loss, correct = reference_step(w, b, v, data, 0.1)
        assert result.loss == pytest.approx(loss, abs=1e-6)
        assert result.correct == correct

    assert np.allclose(trainer.weights()["W"], w, atol=1e-6)
    assert np.allclose(trainer.weights()["b"], b, atol=1e-6)
    assert np.allclose(trainer.snapshot()["vW"], v, atol=1e-6)


def test_weights_are_copies_and_inputs_stay_untouched() -> None:
    trainer = PortableTrainer(make_artifact())
    start, data = start_weights(), batch(5)
    trainer.load(start)
    trainer.step(data, learning_rate=0.1, seed=0)
    held = trainer.weights()
    kept = {name: array.copy() for name, array in held.items()}

    trainer.step(data, learning_rate=0.1, seed=1)
    trainer.step(data, learning_rate=0.1, seed=2)

    assert all(np.array_equal(held[name], kept[name]) for name in held)
    assert all(np.array_equal(start[name], start_weights()[name]) for name in start)
    assert all(np.array_equal(data[name], batch(5)[name]) for name in data)


def test_predict_uses_the_present_weights() -> None:
    trainer = PortableTrainer(make_artifact())
    trainer.load(start_weights())
    trainer.step(batch(5), learning_rate=0.5, seed=0)
    data = batch(7, seed=9)

    logits, embedding = trainer.predict({"x": data["x"]})

    now = trainer.weights()
    assert np.allclose(logits, data["x"] @ now["W"] + now["b"], atol=1e-6)
    assert np.array_equal(embedding, data["x"])


def test_integer_pixels_are_cast_to_what_the_graph_takes() -> None:
    trainer = PortableTrainer(make_artifact())
    trainer.load(start_weights())
    pixels = np.array([[0, 1, 2], [3, 4, 5]], np.uint8)

    logits, _ = trainer.predict({"x": pixels})

    assert np.allclose(logits, pixels @ start_weights()["W"] + start_weights()["b"], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        pytest.param(lambda w: w.pop("b"), "missing", id="missing"),
        pytest.param(lambda w: w.update(c=np.zeros(1, np.float32)), "unexpected", id="extra"),
        pytest.param(lambda w: w.update(b=np.zeros(9, np.float32)), r"\[9\]", id="shape"),
        pytest.param(lambda w: w.update(b=np.zeros(CLASSES)), "float64", id="dtype"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: Callable[..., Any], word: str) -> None:
    trainer = PortableTrainer(make_artifact())
    weights = start_weights()
    change(weights)
    with pytest.raises(BadBlob, match=word):
        trainer.load(weights)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"x": np.zeros((2, FEATURES + 1), np.float32), "y": np.zeros(2, np.int64)}, id="shape"),
        pytest.param({"x": np.zeros((0, FEATURES), np.float32), "y": np.zeros(0, np.int64)}, id="empty"),
        pytest.param({"x": np.zeros((2, FEATURES), np.float32)}, id="no labels"),
    ],
)
def test_batches_that_do_not_fit_are_refused(bad: dict[str, NDArray[Any]]) -> None:
    trainer = PortableTrainer(make_artifact())
    trainer.load(start_weights())
    with pytest.raises(DataError):
        trainer.step(bad, learning_rate=0.1, seed=0)


def test_a_frozen_tensor_that_only_training_reads_is_given_to_training_only() -> None:
    model = train_model()
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "momentum")
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    tensor.external_data.add(key="location", value=SUPPLIED)
    artifact = make_artifact(model.SerializeToString(), frozen=[TensorSpec("momentum", [])])
    frozen, plain = PortableTrainer(artifact, frozen={"momentum": np.array(MOMENTUM, np.float32)}), trained(0)
    frozen.load(start_weights())

    for trainer in (frozen, plain):
        for number in range(3):
            trainer.step(batch(5, seed=number), learning_rate=0.1, seed=0)

    assert np.array_equal(frozen.weights()["W"], plain.weights()["W"])
    assert frozen.predict(batch(2))[0].shape == (2, CLASSES)


def test_a_provider_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"NoSuchProvider.*CPUExecutionProvider"):
        PortableTrainer(make_artifact(), provider="NoSuchProvider")


@pytest.mark.parametrize(
    ("available", "asked", "taken"),
    [
        pytest.param(
            ["CUDAExecutionProvider", "CPUExecutionProvider"], "auto", "CUDAExecutionProvider", id="auto, gpu"
        ),
        pytest.param(["CPUExecutionProvider"], "auto", "CPUExecutionProvider", id="auto, none"),
        pytest.param(["CUDAExecutionProvider", "CPUExecutionProvider"], "cpu", "CPUExecutionProvider", id="cpu"),
        pytest.param(["CUDAExecutionProvider", "CPUExecutionProvider"], "cuda", "CUDAExecutionProvider", id="cuda"),
    ],
)
def test_providers_by_short_name(monkeypatch: pytest.MonkeyPatch, available: list[str], asked: str, taken: str) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: available)
    assert sessions.pick_provider(asked) == taken


def test_a_graph_onnxruntime_cannot_load_is_a_bad_artifact() -> None:
    with pytest.raises(BadArtifact, match=r"cannot load train\.onnx"):
        PortableTrainer(make_artifact(train=b"not a graph"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_goes_back_when_a_trainer_is_gone() -> None:
    large = batch(400_000)
    trainer = PortableTrainer(make_artifact())
    trainer.load(start_weights())
    trainer.step(batch(1), learning_rate=0.1, seed=0)
    before = resident_bytes()

    trainer.step(large, learning_rate=0.1, seed=0)
    trainer.predict({"x": large["x"]})
    held = resident_bytes() - before
    del trainer
    left = resident_bytes() - before

    assert held > 20_000_000
    assert left < held / 4


SQUEEZED = """
import resource
import numpy as np
from fedwright.device_runtime import facts
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.errors import OverBudget
from helpers.tiny_artifact import make_artifact, start_weights

def batch(n):
    return {"x": np.ones((n, 3), np.float32), "y": np.zeros(n, np.int64)}

trainer = PortableTrainer(make_artifact())
trainer.load(start_weights())
trainer.step(batch(4), learning_rate=0.1, seed=0)
before, large = trainer.snapshot(), batch(2_000_000)
used = int(open("/proc/self/status").read().split("VmData:")[1].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 50_000_000,) * 2)
try:
    trainer.step(large, learning_rate=0.1, seed=0)
except OverBudget as err:
    assert err.need_bytes > err.free_bytes, err
    assert all(np.array_equal(trainer.snapshot()[name], before[name]) for name in before)
    trainer.step(batch(4), learning_rate=0.1, seed=0)
    print("refused and alive")
"""


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    """Run Python text in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=env)


def test_running_out_of_memory_is_over_budget_and_the_trainer_lives() -> None:
    done = run_program(SQUEEZED)
    assert done.stdout == "refused and alive\n", done.stderr
    assert done.stderr == ""


THREADS = """
from concurrent.futures import ThreadPoolExecutor
from fedwright.device_runtime.train.portable import PortableTrainer
from helpers.tiny_artifact import make_artifact, start_weights
import numpy as np

def train(seed):
    rng = np.random.default_rng(seed)
    batch = {"x": rng.normal(size=(64, 3)).astype(np.float32), "y": rng.integers(0, 4, 64)}
    trainer = PortableTrainer(make_artifact())
    trainer.load(start_weights())
    for _ in range(5):
        trainer.step(batch, learning_rate=0.1, seed=0)
    return trainer.weights()["W"].tobytes()

with ThreadPoolExecutor(8) as pool:
    together = list(pool.map(train, [*range(8)] * 4))
assert together == [train(seed) for seed in range(8)] * 4
print("same")
"""


def test_trainers_in_many_threads_do_not_disturb_each_other() -> None:
    # In a process of its own, where the first sessions of all are made at once.
    done = run_program(THREADS)
    assert done.stdout == "same\n", done.stderr


def test_whole_numbers_become_what_the_graph_takes_and_fractions_never_become_words() -> None:
    words, numbers = TensorSpec("x", [-1, 3], "int64"), TensorSpec("x", [-1, 3], "float32")
    given = np.array([[1, 2, 3]], np.uint16)
    for spec in (words, numbers):
        made = sessions.batch_array({"x": given}, spec)
        assert (made.dtype, made.tolist()) == (np.dtype(spec.dtype), [[1, 2, 3]])
    with pytest.raises(DataError, match=r"'x' holds fractions \(float32\) but the model takes whole numbers"):
        sessions.batch_array({"x": given.astype(np.float32)}, words)
