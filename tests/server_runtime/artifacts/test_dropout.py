"""Dropout whose mask depends on the seed alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from msgspec import structs
from onnx import numpy_helper
from torch import nn

from fedwright.device_runtime.train.check import check_artifact
from fedwright.protocol.artifact import Artifact, file_info
from fedwright.protocol.errors import BadArtifact
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.spec import Objective
from helpers.graphs import Stepper, structure_of


def _module(ratio: float) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 400), nn.Dropout(ratio), nn.Linear(400, 3))


def _losses(ratio: float, seeds: list[int]) -> list[float]:
    module = _module(ratio)
    artifact = build(structure_of((8,), 3), module)
    batch = {"x": np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32), "y": np.arange(6) % 3}
    stepper = Stepper(artifact, initial_weights(module))
    losses = []
    for seed in seeds:
        stepper.slots = initial_weights(module)
        losses.append(float(stepper.step(batch, seed=seed)["loss"]))
    return losses


def test_equal_seeds_give_equal_masks_and_others_do_not() -> None:
    first, again, other = _losses(0.5, [7, 7, 8])

    assert first == again
    assert first != other


def test_large_seeds_are_welcome() -> None:
    first, other = _losses(0.5, [2**62, 2**62 - 1])

    assert np.isfinite([first, other]).all()
    assert first != other


def test_no_ratio_needs_no_seed() -> None:
    manifest = build(structure_of((8,), 3), _module(0.0)).manifest

    assert [spec.name for spec in manifest.scalars] == ["learning_rate"]


class Probe(nn.Module):
    """Logits that are the dropped input itself, so that gradients of the scale show the mask."""

    def __init__(self, width: int, ratio: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.drop = nn.Dropout(ratio)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.drop(x * self.scale)
        return answer


def _mask(rows: int, width: int, ratio: float, seed: int) -> np.ndarray:
    """The mask, read from the gradient of a loss that is the mean of the logits' distance to minus infinity."""
    module = Probe(width, ratio)
    objective = Objective(cross_entropy=0.0, match_logits=float(rows * width))
    stepper = Stepper(build(structure_of((width,), width, objective=objective), module), initial_weights(module))
    masks = []
    for row in range(rows):
        # only one row is above its target, so the gradient of the scale is that row's mask minus all others' zeros
        x = np.zeros((rows, width), np.float32)
        x[row] = 1.0
        target = np.full((rows, width), -1.0, np.float32)
        stepper.slots = initial_weights(module)
        feed = {"x": x, "y": np.zeros(rows, np.int64), "target_logits": target}
        stepper.step(feed, learning_rate=1.0, seed=seed)
        masks.append(1.0 - stepper.slots["scale"])
    return np.array(masks)


def test_masks_keep_the_right_share_scale_it_up_and_look_random() -> None:
    mask = _mask(rows=24, width=500, ratio=0.25, seed=3)

    kept = mask > 0
    np.testing.assert_allclose(mask[kept], 1 / 0.75, rtol=1e-5)
    # 12000 draws: three standard deviations are 0.012
    assert abs(kept.mean() - 0.75) < 0.012
    # neighbours in a row and in a column agree as often as independent draws do
    expected = 0.75**2 + 0.25**2
    assert abs((kept[:, 1:] == kept[:, :-1]).mean() - expected) < 0.02
    assert abs((kept[1:] == kept[:-1]).mean() - expected) < 0.02
    # no row and no column is dropped or kept as a whole
    assert np.all(np.abs(kept.mean(1) - 0.75) < 0.1)
    assert np.all(np.abs(kept.mean(0) - 0.75) < 0.45)


def test_different_seeds_and_layers_are_independent() -> None:
    one, two = (_mask(rows=8, width=500, ratio=0.5, seed=seed) > 0 for seed in (1, 2))

    assert abs((one == two).mean() - 0.5) < 0.03


def test_the_gradient_passes_only_where_the_value_did() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 3, bias=False))
    weights = initial_weights(module)
    stepper = Stepper(build(structure_of((5,), 3), module), weights)

    x = np.random.default_rng(0).standard_normal((1, 5)).astype(np.float32)
    stepper.step({"x": x, "y": np.array([1])}, learning_rate=1.0)

    forward = np.any(weights["2.weight"] != stepper.slots["2.weight"], axis=0)
    backward = weights["0.bias"] != stepper.slots["0.bias"]
    np.testing.assert_array_equal(forward, backward)
    assert 8 < forward.sum() < 32


def test_attention_dropout_is_active_in_training() -> None:
    torch.manual_seed(2)
    module = nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True), nn.Flatten(), nn.Linear(32, 3)
    )
    layer: Any = module[0]
    for part in (layer.dropout, layer.dropout1, layer.dropout2):
        part.p = 0.0
    stepper = Stepper(build(structure_of((4, 8), 3), module), initial_weights(module))
    batch = {"x": np.random.default_rng(0).standard_normal((3, 4, 8)).astype(np.float32), "y": np.array([0, 1, 2])}

    losses = set()
    for seed in range(3):
        stepper.slots = initial_weights(module)
        losses.add(float(stepper.step(batch, seed=seed)["loss"]))

    assert len(losses) == 3


def _with_constants(artifact: Artifact, change: Callable[[Any], Any]) -> Artifact:
    """The artifact with other whole numbers as its scalar constants."""
    model = onnx.load_from_string(artifact.train)
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.shape == () and value.dtype == np.int64:
            tensor.CopyFrom(numpy_helper.from_array(np.array(change(value), np.int64), tensor.name))
    train = model.SerializeToString()
    files = {**artifact.manifest.files, "train.onnx": file_info(train)}
    return structs.replace(artifact, train=train, manifest=structs.replace(artifact.manifest, files=files))


@pytest.mark.parametrize(
    "change",
    [
        lambda value: 747_796_404 if value == 747_796_405 else value,
        lambda value: 2**31 - 2 if value == round(0.5 * (2**31 - 1)) else value,
    ],
    ids=["another hash", "nearly all dropped"],
)
def test_a_mask_in_the_form_of_dropout_is_looked_at_number_by_number(change: Callable[[Any], Any]) -> None:
    artifact = build(structure_of((8,), 3), _module(0.5))
    check_artifact(artifact, batch=1)

    with pytest.raises(BadArtifact, match="picks samples by their place"):
        check_artifact(_with_constants(artifact, change), batch=1)
