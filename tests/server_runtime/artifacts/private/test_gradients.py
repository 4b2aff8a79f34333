"""Clipped sums inside the graph are those of torch's gradients of single samples, layer by layer, to float accuracy."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedwright.device_runtime.train.check import check_artifact
from fedwright.protocol.errors import BuildError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure
from helpers.private_steps import clipped_sum, graph_sum

CLASSES, SAMPLES = 4, 5


class Words(nn.Module):
    """Embedding, layer normalisation and a linear layer over positions, with words that come twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)
        self.inner = nn.Linear(6, 9)
        self.last = nn.Linear(9, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        answer: torch.Tensor = self.last(torch.relu(self.inner(self.norm(self.table(x)))).mean(1))
        return answer


class Twice(nn.Module):
    """One linear layer that is used two times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        answer: torch.Tensor = self.last(torch.tanh(self.inner(torch.tanh(self.inner(x)))))
        return answer


def convolutions() -> nn.Module:
    """Strided, dilated, grouped and one by one, group normalisation, and one whose positions are few."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3),
        nn.ReLU(),
        nn.Conv2d(6, 8, 1, bias=False),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 2, bias=True),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


MODULES: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "words": (Words, (8,), "whole"),
    "twice": (Twice, (6,), "real"),
    "convolutions": (convolutions, (2, 8, 8), "real"),
    "cnn-lora": (lambda: zoo.create(ModelSpec("cnn-lora", (1, 8, 8), CLASSES), seed=0), (1, 8, 8), "real"),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(1)
    module: nn.Module = MODULES[name][0]()
    return module


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_clipped_sum_is_that_of_torch(name: str) -> None:
    _, shape, numbers = MODULES[name]
    spec = ModelSpec(name, shape, CLASSES)
    artifact = build(Structure(spec, private=True), made(name))
    check_artifact(artifact, batch=SAMPLES)
    rng = np.random.default_rng(3)
    x: Any = rng.integers(0, 7, (SAMPLES, *shape))
    x = x if numbers == "whole" else rng.standard_normal((SAMPLES, *shape)).astype(np.float32)
    y = rng.integers(0, CLASSES, SAMPLES)
    weights = {key: np.asarray(value) for key, value in initial_weights(made(name)).items()}
    names = [slot.name for slot in artifact.manifest.slots]

    for clip in (0.7, 1e4):
        wanted = clipped_sum(made(name), x, y, clip=clip, names=names)
        found = graph_sum(artifact, weights, x, y, clip=clip)
        largest = max(float(np.abs(value).max()) for value in wanted.values())
        for key, value in wanted.items():
            np.testing.assert_allclose(found[key], value, atol=2e-6 * largest, err_msg=f"{key} at clip {clip}")


def test_one_sample_alone_moves_the_sum_by_the_clip_at_most() -> None:
    spec = ModelSpec("words", (8,), CLASSES)
    artifact = build(Structure(spec, private=True), made("words"))
    weights = {key: 50 * np.asarray(value) for key, value in initial_weights(made("words")).items()}

    for word in range(7):
        found = graph_sum(artifact, weights, np.full((1, 8), word), np.array([0]), clip=0.25)
        norm = np.sqrt(sum(float(np.square(value).sum()) for value in found.values()))
        assert norm <= 0.25 * (1 + 1e-3)


@pytest.mark.parametrize(
    ("module", "shape", "objective", "words"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten()), (1, 4, 4), Objective(), "resnet8-gn"),
        (nn.Sequential(nn.Linear(4, CLASSES)), (4,), Objective(proximal=0.1), "plain cross-entropy"),
    ],
    ids=["batch norm", "proximal term"],
)
def test_what_cannot_be_hidden_is_refused_in_a_sentence(
    module: nn.Module, shape: tuple[int, ...], objective: Objective, words: str
) -> None:
    structure = Structure(ModelSpec("own", shape, CLASSES if len(shape) == 1 else 8), objective, private=True)
    with pytest.raises(BuildError, match=words):
        build(structure, module)
