"""Models without norms of single samples: the device runs each sample by itself, clips, sums and adds its noise."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from msgspec import structs
from onnx import helper, numpy_helper
from torch import nn

from fedwright.device_runtime.train.check import check_artifact
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.device_runtime.train.private import ClippedSum, StepPrivacy
from fedwright.protocol.artifact import Artifact, TensorSpec, file_info
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.messages import Hiding
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Structure
from helpers.private_steps import clipped_sum

CLASSES, SAMPLES, WORDS = 4, 5, 7


class Recurrent(nn.Module):
    """Words through an LSTM and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 5)
        self.long, self.gated = nn.LSTM(5, 6, batch_first=True), nn.GRU(6, 6, batch_first=True)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        answer: torch.Tensor = self.last(self.gated(self.long(self.table(x))[0])[0][:, -1])
        return answer


class Tied(nn.Module):
    """A table of words that also gives the answers, one for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(WORDS, 5), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of every place."""
        return torch.tanh(self.inner(self.table(x))) @ self.table.weight.T


def slopes() -> nn.Module:
    """A layer with a parameter of its own kind."""
    return nn.Sequential(nn.Linear(6, 8), nn.PReLU(8), nn.Linear(8, CLASSES))


def tokens(rng: Any, *shape: int) -> Any:
    return rng.integers(0, WORDS, shape)


def reals(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def labels(rng: Any, *shape: int) -> Any:
    return rng.integers(0, CLASSES, shape)


Make = Callable[..., Any]
CASES: dict[str, tuple[Callable[[], nn.Module], ModelSpec, Make, Make, Any]] = {
    "recurrent": (Recurrent, ModelSpec("own", (4,), CLASSES), tokens, labels, nn.functional.cross_entropy),
    "tied": (Tied, ModelSpec("own", (4,), WORDS), tokens, tokens, nn.functional.cross_entropy),
    "slopes": (slopes, ModelSpec("own", (6,), CLASSES), reals, labels, nn.functional.cross_entropy),
    "numbers": (
        lambda: nn.Linear(6, 2),
        ModelSpec("own", (6,), 2, goal="regress"),
        reals,
        reals,
        lambda logits, label: nn.functional.mse_loss(logits[0], label),
    ),
}
LABELS = {"recurrent": (), "tied": (4,), "slopes": (), "numbers": (2,)}


def module_of(name: str) -> nn.Module:
    torch.manual_seed(1)
    return CASES[name][0]()


@cache
def artifact_of(name: str) -> Artifact:
    return build(Structure(CASES[name][1], private=True), module_of(name))


def batch_of(name: str) -> dict[str, Any]:
    _, spec, inputs, answers, _ = CASES[name]
    rng = np.random.default_rng(3)
    x, y = inputs(rng, SAMPLES, *spec.input_shape), answers(rng, SAMPLES, *LABELS[name])
    return {"x": x, "y": y, "row_weight": np.ones(SAMPLES, np.float32)}


def change(name: str, batch: dict[str, Any], *, clip: float, noise: float = 0.0) -> dict[str, Any]:
    """Before - after of one step of plain SGD with rate 1 and one sample expected."""
    trainer, before = PortableTrainer(artifact_of(name)), initial_weights(module_of(name))
    trainer.load({key: np.asarray(value) for key, value in before.items()})
    trainer.hide(StepPrivacy(Hiding(clip, noise), 1))
    trainer.step(batch, learning_rate=1.0, seed=1)
    return {key: before[key].astype(np.float64) - value for key, value in trainer.weights().items()}


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("clip", [0.05, 1e4])
def test_the_clipped_sum_is_that_of_torch(name: str, clip: float) -> None:
    batch = batch_of(name)
    check_artifact(artifact_of(name), batch=SAMPLES)
    found = change(name, batch, clip=clip)

    wanted = clipped_sum(module_of(name), batch["x"], batch["y"], clip=clip, names=list(found), fit=CASES[name][4])
    largest = max(float(np.abs(value).max()) for value in wanted.values())
    for key, value in wanted.items():
        # a change is seen through weights of some size, in float32
        np.testing.assert_allclose(found[key], value, atol=2e-6 * largest + 2e-7, err_msg=key)


def test_a_lot_of_nobody_is_noise_alone_of_the_size_that_was_asked_for() -> None:
    batch = batch_of("slopes")
    batch["row_weight"] = np.zeros(SAMPLES, np.float32)
    assert all(not value.any() for value in change("slopes", batch, clip=2.0).values())

    noisy = [change("slopes", batch, clip=2.0, noise=1.5) for _ in range(60)]
    entries = np.concatenate([value.ravel() for one in noisy for value in one.values()])
    # 60 steps of 100 weights: 3, give or take 0.03
    assert entries.std() == pytest.approx(3.0, rel=0.04)


def test_a_sample_whose_gradient_overflows_counts_for_nothing() -> None:
    batch = batch_of("slopes")
    batch["x"][2] = np.inf
    others = {name: np.delete(rows, 2, axis=0) for name, rows in batch.items()}

    found, wanted = change("slopes", batch, clip=0.5), change("slopes", others, clip=0.5)
    assert all(np.array_equal(found[key], value) for key, value in wanted.items())


def test_a_gradient_of_another_shape_is_refused_before_it_is_stretched_over_the_sum() -> None:
    total = ClippedSum([TensorSpec("noise/w", [100])], StepPrivacy(Hiding(1.0, 1.0), 1))
    with pytest.raises(BadArtifact, match="not of the shape"):
        total.add([np.ones(1, np.float32)])


def with_graph(change: Callable[[onnx.GraphProto], None], **manifest: Any) -> Artifact:
    """The honest artifact with a changed graph, whose manifest says so."""
    honest = artifact_of("slopes")
    model = onnx.load_model_from_string(honest.train)
    change(model.graph)
    train = model.SerializeToString()
    files = {**honest.manifest.files, "train.onnx": file_info(train)}
    return Artifact(structs.replace(honest.manifest, files=files, **manifest), train, honest.eval)


def way_around(graph: onnx.GraphProto) -> None:
    """A weight that follows the loss."""
    next(node for node in graph.node if "next/0.bias" in node.output).output[0] = "before"
    graph.node.append(helper.make_node("Add", ["before", "loss"], ["next/0.bias"]))


def one_gradient_less(graph: onnx.GraphProto) -> None:
    """A sum that no gradient stands for."""
    del graph.output[-1]


def short_gradient(graph: onnx.GraphProto) -> None:
    """One entry that would be stretched over all of a sum."""
    last = graph.output[-1]
    graph.initializer.append(numpy_helper.from_array(np.array([0, 1]), "axes"))
    maker = next(node for node in graph.node if last.name in node.output)
    maker.output[list(maker.output).index(last.name)] = "long"
    axes = list(range(len(last.type.tensor_type.shape.dim)))
    graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.array(axes), "axes"))
    graph.node.append(helper.make_node("ReduceSum", ["long", "axes"], [last.name], keepdims=1))
    for dim in last.type.tensor_type.shape.dim:
        dim.dim_value = 1


@pytest.mark.parametrize(
    ("cheat", "gradients", "words"),
    [
        (way_around, None, "next/0.bias depends on samples without noise"),
        (one_gradient_less, -1, "gradients for"),
        (short_gradient, None, "but the manifest says"),
    ],
    ids=["a way around", "one gradient less", "a short gradient"],
)
def test_a_server_that_cheats_is_found_out(
    cheat: Callable[[onnx.GraphProto], None], gradients: int | None, words: str
) -> None:
    names = artifact_of("slopes").manifest.gradients
    with pytest.raises(BadArtifact, match=words):
        check_artifact(with_graph(cheat, gradients=names[:gradients]), batch=SAMPLES)


def test_every_sample_draws_for_itself_what_is_dropped() -> None:
    module = nn.Sequential(nn.Linear(6, 512), nn.PReLU(512), nn.Dropout(0.5), nn.Linear(512, CLASSES))
    trainer = PortableTrainer(build(Structure(ModelSpec("own", (6,), CLASSES), private=True), module))
    start = {key: np.asarray(value) for key, value in initial_weights(module).items()}
    trainer.hide(StepPrivacy(Hiding(1e4, 0.0), 1))
    one = {name: rows[:1] for name, rows in batch_of("slopes").items()}
    twice = {name: np.repeat(rows, 2, axis=0) for name, rows in one.items()}
    dropped = []
    for batch in (one, one, twice):
        trainer.load(start)
        trainer.step(batch, learning_rate=1.0, seed=1)
        dropped.append(trainer.weights()["3.weight"] == start["3.weight"])

    # half of the units are dropped for one sample, a quarter for both of two
    assert not np.array_equal(dropped[0], dropped[1])
    assert dropped[2].mean() < 0.4 < max(dropped[0].mean(), dropped[1].mean())


def test_a_task_that_hides_nothing_does_not_run_it() -> None:
    with pytest.raises(BadArtifact, match="do not agree"):
        PortableTrainer(artifact_of("slopes")).hide(None)
