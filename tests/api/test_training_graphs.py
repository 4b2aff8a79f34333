"""A training graph by itself: the same steps as torch's, wherever it was saved to."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import fedwright as fw
from fedwright.protocol.errors import BadArtifact, BuildError, ConfigError, DataError
from helpers.present import present

SHAPE, CLASSES = (1, 6, 6), 3


def make_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))


def examples(count: int = 48) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, count)
    return (rng.normal(size=(count, *SHAPE)) + y[:, None, None, None]).astype(np.float32), y


@pytest.fixture(scope="module")
def graph() -> fw.TrainingGraph:
    return fw.training_graph(make_net(), input_shape=SHAPE, classes=CLASSES)


def test_a_step_is_torchs_step(graph: fw.TrainingGraph) -> None:
    x, y = examples()
    net = make_net()
    loss = nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    trainer = fw.Trainer(graph, learning_rate=0.1)

    assert trainer.step(x, y) == pytest.approx(loss.item(), rel=1e-5)
    for name, value in net.named_parameters():
        expected = (value - 0.1 * present(value.grad)).detach().numpy()
        np.testing.assert_allclose(trainer.weights()[name], expected, rtol=1e-4, atol=1e-6)


def test_the_programs_own_module_stays_as_it_is(graph: fw.TrainingGraph) -> None:
    net = make_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}

    fw.Trainer(fw.training_graph(net, input_shape=SHAPE, classes=CLASSES)).fit(*examples())

    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


def test_it_learns_and_goes_on_from_a_folder(graph: fw.TrainingGraph, tmp_path: Path) -> None:
    x, y = examples()
    first = fw.Trainer(graph, learning_rate=0.1)
    losses = first.fit(x, y, epochs=20, batch=8)
    first.graph().save(tmp_path)
    second = fw.Trainer(fw.TrainingGraph.load(tmp_path))

    assert losses[-1] < losses[0] / 2
    assert second.accuracy(x, y) == first.accuracy(x, y) > 0.9
    np.testing.assert_array_equal(second.predict(x, batch=5), first.predict(x, batch=5))


def test_an_exported_model_says_what_the_trainer_says(graph: fw.TrainingGraph, tmp_path: Path) -> None:
    x, _ = examples()
    trainer = fw.Trainer(graph)
    trainer.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    logits = session.run(None, {session.get_inputs()[0].name: x})[0]

    np.testing.assert_allclose(logits, trainer.predict(x), rtol=1e-5, atol=1e-5)


def test_only_what_is_named_trains() -> None:
    graph = fw.training_graph(make_net, input_shape=SHAPE, classes=CLASSES, trainable=("3.",), optimizer="adam")
    trainer = fw.Trainer(graph)
    trainer.fit(*examples())

    np.testing.assert_array_equal(trainer.weights()["0.weight"], graph.weights["0.weight"])
    assert (trainer.weights()["3.weight"] != graph.weights["3.weight"]).any()


def test_a_model_of_the_zoo_by_name() -> None:
    graph = fw.training_graph("cnn-small", input_shape=(1, 8, 8), classes=4)

    assert graph.input_shape == (1, 8, 8)
    assert graph.size_bytes < 100_000


def needs_more(width: int) -> nn.Module:
    return nn.Linear(width, CLASSES)


@pytest.mark.parametrize(
    ("model", "error", "sentence"),
    [
        (3, ConfigError, "3 is no model; give a torch.nn.Module"),
        (needs_more, ConfigError, "needs_more cannot be made: missing a required argument: 'width'; it may take"),
        ("cnn-smal", ConfigError, "unknown model 'cnn-smal'"),
        (nn.Linear(5, 2), BuildError, "."),
    ],
    ids=["no model", "a function that wants more", "no name", "wrong input"],
)
def test_what_is_no_model_is_said_in_a_sentence(model: object, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        fw.training_graph(model, input_shape=SHAPE, classes=CLASSES)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda t, x, y: t.fit(x, y[:40]), DataError, r"x has shape \[48, 1, 6, 6\] but y \[40\]; give one label"),
        (lambda t, x, y: t.step(x, y[:40]), DataError, r"x has shape \[48, 1, 6, 6\] but y \[40\]; give one label"),
        (lambda t, x, y: t.accuracy(x, y[:40]), DataError, r"x has shape \[48, 1, 6, 6\] but y \[40\]; give one"),
        (lambda t, x, y: t.step(x, y - 1), DataError, "labels go from -1 to 1 but the graph has 3 classes, 0 to 2"),
        (lambda t, x, y: t.step(x, y + 1), DataError, "labels go from 1 to 3 but the graph has 3 classes, 0 to 2"),
        (lambda t, x, y: t.step(x, y + 0.5), DataError, "'y' holds fractions but the graph takes whole numbers"),
        (lambda t, x, y: t.predict(x[:0]), DataError, "there are no examples"),
        (lambda t, x, y: t.fit(x, y, batch=0), ConfigError, "batch is 0 but must be 1 or more"),
        (
            lambda t, x, y: fw.Trainer(cast(Any, make_net())),
            ConfigError,
            "a Sequential is no training graph; make one with",
        ),
    ],
    ids=["fit", "step", "accuracy", "below", "above", "fractions", "no examples", "batch", "no graph"],
)
def test_mistakes_are_named_and_leave_the_weights(
    call: Any, error: type[Exception], sentence: str, graph: fw.TrainingGraph
) -> None:
    trainer = fw.Trainer(graph)

    with pytest.raises(error, match=sentence):
        call(trainer, *examples())

    np.testing.assert_array_equal(trainer.weights()["0.weight"], graph.weights["0.weight"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"optimizer": "rmsprop"}, "optimizer is 'rmsprop'; choose one of sgd, adam, adamw"),
        ({"input_shape": ()}, r"input_shape is \(\) but must be the shape of one example, such as \(1, 28, 28\)"),
        ({"input_shape": (1, -6, 6)}, "must be the shape of one example"),
        ({"task": "guess"}, "task 'guess' is not known; choose one of classify"),
    ],
    ids=["optimizer", "none", "negative", "task"],
)
def test_what_no_graph_can_be_made_of_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fw.training_graph(make_net(), **{"input_shape": SHAPE, "classes": CLASSES, **options})


def test_a_graph_predicts_numbers_too() -> None:
    x, _ = examples()
    y = x.reshape(len(x), -1)[:, :2]
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    graph = fw.training_graph(net, input_shape=SHAPE, classes=2, task="regress")
    trainer = fw.Trainer(graph, learning_rate=0.005)

    losses = trainer.fit(x, y, epochs=30, batch=8)

    assert losses[-1] < losses[0] / 2
    with pytest.raises(ConfigError, match="accuracy is of single classes but the graph is for regress"):
        trainer.accuracy(x, y)


def test_a_graph_is_shown_in_a_line(graph: fw.TrainingGraph) -> None:
    assert repr(graph) == "<TrainingGraph Sequential (1, 6, 6), sgd, classify, 235 numbers>"


def test_a_folder_without_weights_is_refused(graph: fw.TrainingGraph, tmp_path: Path) -> None:
    graph.save(tmp_path)
    (tmp_path / "weights.safetensors").unlink()

    with pytest.raises(BadArtifact, match=r"has no weights\.safetensors"):
        fw.TrainingGraph.load(tmp_path)
