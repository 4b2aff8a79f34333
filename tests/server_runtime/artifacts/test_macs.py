"""Multiply-accumulates counted from graphs: by head and against the paper's cost model."""

import pytest

from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.artifacts.export import export
from fedwright.server_runtime.artifacts.macs import count_macs
from fedwright.server_runtime.evaluate.metrics import LstmCost
from fedwright.server_runtime.spec import ModelSpec, Structure


def macs(spec: ModelSpec) -> int:
    return count_macs(export(zoo.create(spec, seed=0), spec, training=False).graph)


def test_a_lenet_by_head() -> None:
    # valid 5x5 convolutions 1 -> 6 -> 16 on 28x28, pooled by 2, then 256 -> 120 -> 100 -> 10
    convolutions = 24 * 24 * 6 * 25 + 8 * 8 * 16 * 6 * 25
    assert macs(ModelSpec("lenet-valid", (1, 28, 28), 10)) == convolutions + 256 * 120 + 120 * 100 + 100 * 10


@pytest.mark.parametrize("width", [1.0, 0.731, 0.5, 0.2])
def test_the_language_model_as_in_the_papers_cost_model(width: float) -> None:
    cost = LstmCost()
    spec = zoo.scaled(ModelSpec("lstm-lm", (cost.words,), cost.vocabulary), width)
    assert macs(spec) == cost.macs(width)


def test_the_manifest_says_it() -> None:
    spec = ModelSpec("mlp", (8,), 4)
    assert Builder().build(Structure(spec)).manifest.macs == macs(spec)
