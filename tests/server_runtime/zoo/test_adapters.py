"""Adapters on linear layers, attention and LSTMs: against torch, against the merged model, against the plain one."""

import numpy as np
import pytest
import torch

from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.blocks.lora import merge
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from fedwright.server_runtime.zoo import MODELS, adapter_names, create
from fedwright.server_runtime.zoo.adapter_models import with_rank, without_adapters
from helpers.graphs import Stepper, relative_error, torch_gradients
from helpers.present import present

SPECS = {
    "mlp-lora": ModelSpec("mlp-lora", (12,), 5),
    "cnn-lora": ModelSpec("cnn-lora", (1, 8, 8), 5),
    "lenet-lora": ModelSpec("lenet-lora", (1, 28, 28), 5),
    "vit-lora": ModelSpec("vit-lora", (1, 8, 8), 5),
    "lstm-lora": ModelSpec("lstm-lora", (6,), 9),
}
EACH = pytest.mark.parametrize("name", sorted(SPECS))
# mlp-lora is wider than mlp, so there is no plain model of its shape.
TWINNED = pytest.mark.parametrize("name", sorted(SPECS.keys() - {"mlp-lora"}))


def batch_of(spec: ModelSpec) -> dict[str, np.ndarray]:
    """Four examples; words where the model reads words."""
    rng = np.random.default_rng(3)
    shape = (4, *spec.input_shape)
    words = MODELS[spec.model].kind == "tokens"
    x = rng.integers(0, spec.classes, shape) if words else rng.standard_normal(shape).astype(np.float32)
    return {"x": x, "y": rng.integers(0, spec.classes, 4)}


def trained(spec: ModelSpec) -> torch.nn.Module:
    """A model whose adapters have moved: no factor is zero."""
    module = create(spec, seed=2)
    made = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name in adapter_names(module):
            module.get_parameter(name).copy_(0.3 * torch.randn(module.get_parameter(name).shape, generator=made))
    return module


def test_every_adapted_model_is_here() -> None:
    assert SPECS.keys() == {name for name, entry in MODELS.items() if entry.rank is not None}


@EACH
def test_gradients_of_adapters_are_torchs(name: str) -> None:
    spec = SPECS[name]
    module = trained(spec)
    names, weights, batch = adapter_names(module), initial_weights(module), batch_of(spec)

    structure = Structure(spec, optimizer=Optimizer(), trainable=names)
    stepper = Stepper(build(structure, module), weights)
    loss = float(stepper.step(batch, learning_rate=1.0)["loss"])

    wanted_loss, wanted = torch_gradients(module, batch)
    found = {each: weights[each].astype(np.float64) - stepper.slots[each] for each in names}
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert set(stepper.slots) == set(names)
    assert relative_error(found, {each: wanted[each] for each in names}) < 1e-4


@TWINNED
def test_a_merged_model_computes_the_same(name: str) -> None:
    spec = SPECS[name]
    module, plain = trained(spec).eval(), create(present(without_adapters(spec)), seed=0).eval()
    merged = merge(initial_weights(module))
    plain.load_state_dict({each: torch.from_numpy(value) for each, value in merged.items()})
    x = torch.from_numpy(batch_of(spec)["x"])

    with torch.no_grad():
        torch.testing.assert_close(plain(x), module(x), atol=1e-4, rtol=1e-4)


@TWINNED
def test_the_base_begins_as_the_model_without_adapters(name: str) -> None:
    spec = SPECS[name]
    adapted, plain = (
        initial_weights(create(spec, seed=4)),
        initial_weights(create(present(without_adapters(spec)), seed=4)),
    )
    for each, value in plain.items():
        np.testing.assert_array_equal(adapted[each], value)
    for each, value in merge(adapted).items():
        np.testing.assert_array_equal(value, plain[each])


def test_an_lstm_has_a_factor_pair_per_gate_and_matrix() -> None:
    spec = with_rank(ModelSpec("lstm-lora", (23,), 3437), 1)
    module = create(spec, seed=0)
    count = sum(module.get_parameter(name).numel() for name in adapter_names(module))
    # rank 1: 4 (E + H) for the words, 4 (H + H) for the state, H + V for the output layer
    assert count == 4 * (128 + 256) + 4 * (256 + 256) + 256 + 3437
