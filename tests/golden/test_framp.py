"""FRAMP's own numbers: what travels for a ResNet-18, what a descriptor and prototypes weigh, the sign of the step."""

from typing import Any

import numpy as np
import pytest

from fedwright.device_runtime.describe.descriptor import SIZE
from fedwright.protocol import deltas
from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.hypernet import Hypernet, HypernetForm, HypernetStart, Step
from fedwright.server_runtime.blocks.masking import top_entries
from fedwright.server_runtime.spec import ModelSpec

RESNET = 11_173_962


@pytest.mark.parametrize(
    ("share", "values", "down"), [(1 / 64, 0.70e6, 1.40e6), (1 / 4, 11.2e6, 12.6e6)], ids=["1/64", "1/4"]
)
def test_a_masked_resnet_travels_in_as_many_bytes(share: float, values: float, down: float) -> None:
    """At most 4 γ d for the values, and a bit per entry, or an index per value where that is shorter."""
    weights = {"w": np.random.default_rng(0).standard_normal(RESNET, dtype=np.float32)}
    masks = top_entries(weights, weights, share)
    up = len(deltas.encode(weights, keep=masks, implied=True))
    assert 4 * int(masks["w"].sum()) == pytest.approx(values, rel=0.005)
    assert up < 1.001 * values
    assert up < len(deltas.encode(weights, keep=masks)) < 1.01 * down


def test_a_descriptor_and_prototypes_weigh_little() -> None:
    """0.5 kB at join; 20 kB of prototypes for ten classes of a ResNet-18's 512 features."""
    assert 4 * SIZE == 512
    spec = ModelSpec("resnet18-gn", (3, 32, 32), 10)
    module: Any = zoo.create(spec, seed=0)
    width = module.head.in_features
    assert 4 * 10 * width == 20_480


def test_the_printed_sign_leads_away_and_the_corrected_one_nearer() -> None:
    """One device, a quadratic loss: from the same start the distance to its result falls or grows."""
    start = {"w": np.zeros(16, np.float32)}
    row, final = np.ones((1, 4), np.float32), np.ones(16, np.float32)
    found = {}
    for name, sign in {"corrected": 1, "printed": -1}.items():
        net = Hypernet(HypernetForm(4, 8, norm=1.0), HypernetStart(start, {}), seed=0)
        before = net.generate(row)[0]["w"]
        net.add(row[0], {"w": sign * (final - before)})
        net.learn(Step(0.05))
        found[name] = np.linalg.norm(net.generate(row)[0]["w"] - final) / np.linalg.norm(before - final)
    # a step of β moves the weights by β (1 + ||h||²) of the change: 0.05 · 2 = a tenth
    assert found["corrected"] == pytest.approx(0.9, abs=0.01)
    assert found["printed"] == pytest.approx(1.1, abs=0.01)
