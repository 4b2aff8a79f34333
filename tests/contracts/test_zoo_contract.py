"""What every model of the zoo must do, at any size."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedwright.server_runtime.artifacts.export import export
from fedwright.server_runtime.artifacts.macs import count_macs
from fedwright.server_runtime.blocks.slicing import group_sizes, prefix_plan, put, random_plan, take
from fedwright.server_runtime.model_names import SUMMARIES
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo import MODELS, ZooModel, create, full_sizes, scaled, sizes_of


@dataclass(frozen=True)
class Case:
    """Input and classes to try a model with, and its parameters at width 1."""

    input_shape: tuple[int, ...]
    classes: int
    parameters: int
    single: bool = True


# The counts of lstm-lm, lenet-valid and vit-tiny are the papers'; the others pin what was built.
CASES = {
    "mlp": Case((64,), 10, 17_226),
    "mlp-lora": Case((784,), 10, 1_902_810),
    "cnn-small": Case((1, 8, 8), 10, 21_546),
    "cnn-lora": Case((1, 8, 8), 10, 21_546 + 4 * (544 + 42)),
    "lenet": Case((1, 28, 28), 10, 215_370),
    "lenet-valid": Case((3, 32, 32), 10, 64_102),
    "lenet-lora": Case((3, 32, 32), 10, 64_102 + 4 * 850),
    "cnn-flat": Case((1, 28, 28), 10, 28_938),
    "cnn-gn": Case((1, 28, 28), 10, 105_914),
    "cnn-hasa": Case((3, 32, 32), 10, 1_422_218),
    "cnn1": Case((3, 32, 32), 10, 97_384),
    "cnn2": Case((3, 32, 32), 10, 134_312),
    "cnn3": Case((3, 32, 32), 10, 705_770),
    "cnn4": Case((3, 32, 32), 10, 5_851_754),
    "resnet8": Case((3, 32, 32), 10, 78_042),
    "resnet8-gn": Case((3, 32, 32), 10, 78_042),
    "resnet18": Case((3, 32, 32), 10, 11_173_962),
    "resnet18-gn": Case((3, 32, 32), 10, 11_173_962),
    "mobilenet-v1": Case((3, 32, 32), 10, 3_217_226),
    "mobilenet-v2": Case((3, 32, 32), 10, 2_236_682),
    "mobilenet-v3": Case((3, 32, 32), 10, 1_528_106),
    "vit-tiny": Case((3, 32, 32), 10, 208_074),
    "vit-lora": Case((3, 32, 32), 10, 208_074 + 4 * 2_122),
    "lstm-lm": Case((23,), 3437, 1_718_509),
    "lstm-lora": Case((23,), 3437, 1_718_509 + 4 * (1_536 + 2_048 + 3_693)),
    "cnn-motion": Case((9, 128), 6, 36_870),
    "gcn4": Case((1433,), 7, 104_711, single=False),
    "cnn-exits": Case((1, 28, 28), 10, 95_166, single=False),
}
NAMES = sorted(CASES)
WIDTHS = [1, 0.5, 0.3]


def spec_of(name: str) -> ModelSpec:
    return ModelSpec(name, CASES[name].input_shape, CASES[name].classes)


def model_of(name: str, width: float = 1) -> ZooModel:
    model = create(scaled(spec_of(name), width), seed=1)
    assert isinstance(model, ZooModel)
    return model


def batch_for(model: ZooModel, size: int) -> tuple[torch.Tensor, ...]:
    """Random examples; a ring when the model reads edges."""
    made = torch.Generator().manual_seed(2)
    ring = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size], dim=1)
    makers = {
        "float32": lambda shape: torch.rand(size, *shape[1:], generator=made),
        "int64": lambda shape: torch.randint(0, 50, (size, *shape[1:]), generator=made),
    }
    return tuple(ring if i.name == "edges" else makers[i.dtype](i.shape) for i in model.inputs())


def logits_of(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    out = model(*batch)
    answer: torch.Tensor = out[-1] if isinstance(out, tuple) else out
    return answer


def arrays(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def test_every_model_has_a_case() -> None:
    assert CASES.keys() == MODELS.keys() == SUMMARIES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_parameters_at_full_size(name: str) -> None:
    assert sum(parameter.numel() for parameter in model_of(name).parameters()) == CASES[name].parameters


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_every_axis_has_a_group_or_is_fixed(name: str, width: float) -> None:
    model = model_of(name, width)
    state = arrays(model)

    assert model.axes().keys() == state.keys()
    assert {key: len(axes) for key, axes in model.axes().items()} == {key: value.ndim for key, value in state.items()}
    cut = {group: size for group, size in sizes_of(scaled(spec_of(name), width)).items() if group != "exits"}
    assert group_sizes(state, model.axes()) == cut


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("name", NAMES)
def test_forward_at_any_batch(name: str, size: int) -> None:
    model = model_of(name, 0.3)

    assert logits_of(model, batch_for(model, size)).shape == (size, CASES[name].classes)


@pytest.mark.parametrize("name", NAMES)
def test_forward_is_head_of_encoder(name: str) -> None:
    model = model_of(name, 0.3).eval()
    batch = batch_for(model, 3)

    out = model.head(model.encoder(*batch))

    torch.testing.assert_close(out, model(*batch), rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].single])
def test_blocks_follow_one_another(name: str) -> None:
    model = model_of(name, 0.3).eval()
    (x,) = batch_for(model, 3)
    out = x

    for _, block in model.blocks():
        out = block(out)

    torch.testing.assert_close(out, model(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_hold_every_parameter_once(name: str) -> None:
    model = model_of(name, 0.3)

    held = [id(parameter) for _, block in model.blocks() for parameter in block.parameters()]

    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters())
    assert all(model.get_submodule(name) is block for name, block in model.blocks())


@pytest.mark.parametrize("width", [0.5, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_slice_loads_trains_and_goes_back(name: str, width: float) -> None:
    spec = scaled(spec_of(name), width)
    full = model_of(name)
    before = arrays(full)
    plan = prefix_plan(full_sizes(spec), sizes_of(spec))
    small = model_of(name, width)

    part = take(before, full.axes(), plan)
    small.load_state_dict({key: torch.from_numpy(value) for key, value in part.items()}, strict=True)
    loss = logits_of(small, batch_for(small, 4)).square().mean()
    loss.backward()
    torch.optim.SGD(small.parameters(), lr=0.1).step()
    after = put(before, arrays(small), full.axes(), plan)

    assert torch.isfinite(loss)
    again = take(after, full.axes(), plan)
    for key, value in arrays(small).items():
        np.testing.assert_array_equal(again[key], value)
        np.testing.assert_array_equal(after[key] != before[key], put_mask(before[key], value, full, key, plan))


def put_mask(before: np.ndarray, part: np.ndarray, full: ZooModel, key: str, plan: dict[str, np.ndarray]) -> np.ndarray:
    """Where the whole tensor must have changed: inside the slice, and there only where training changed it."""
    old = take({key: before}, full.axes(), plan)[key]
    return put({key: np.zeros(before.shape, bool)}, {key: old != part}, full.axes(), plan)[key]


@pytest.mark.parametrize("name", NAMES)
def test_width_one_is_the_identity(name: str) -> None:
    full = model_of(name)
    state = arrays(full)
    plan = prefix_plan(full_sizes(spec_of(name)), full_sizes(spec_of(name)))

    part = take(state, full.axes(), plan)

    assert scaled(spec_of(name), 1) == spec_of(name)
    for key, value in state.items():
        np.testing.assert_array_equal(part[key], value)


def zero_outside(state: dict[str, np.ndarray], model: ZooModel, plan: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    blank = {key: np.zeros_like(value) for key, value in state.items()}
    return put(blank, take(state, model.axes(), plan), model.axes(), plan)


# Where a norm counts channels, or attention scales by its width, a zeroed whole model is another function.
ALIGNED = [name for name in NAMES if not name.startswith(("vit", "cnn-gn", "cnn-exits")) and not name.endswith("-gn")]


@pytest.mark.parametrize("name", ALIGNED)
def test_random_slice_computes_what_the_zeroed_whole_does(name: str) -> None:
    """Residual sums, depthwise filters, flattened maps and gates all pick the same channels."""
    spec = scaled(spec_of(name), 0.5)
    full, small = model_of(name).eval(), model_of(name, 0.5).eval()
    plan = random_plan(full_sizes(spec), sizes_of(spec), np.random.default_rng(3))
    state = arrays(full)
    part = take(state, full.axes(), plan)
    small.load_state_dict({key: torch.from_numpy(value) for key, value in part.items()})
    full.load_state_dict({key: torch.from_numpy(value) for key, value in zero_outside(state, full, plan).items()})

    batch = batch_for(full, 3)

    with torch.no_grad():
        torch.testing.assert_close(logits_of(small, batch), logits_of(full, batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_weights(name: str) -> None:
    spec = scaled(spec_of(name), 0.3)
    drawn = torch.get_rng_state()

    one, same, other = create(spec, seed=5), create(spec, seed=5), create(spec, seed=6)

    pairs = list(zip(one.parameters(), same.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("name", ["mlp-lora", "cnn-lora", "lenet-lora", "vit-lora"])
def test_rank_is_left_alone_by_width(name: str) -> None:
    spec = replace(spec_of(name), sizes=(("rank", 1),))

    assert sizes_of(scaled(spec, 0.5))["rank"] == 1
    assert scaled(spec, 1) == spec


@pytest.mark.parametrize("name", ["vit-tiny", "vit-lora"])
def test_heads_are_cut_inside(name: str) -> None:
    """Values and hidden units may be cut freely; widths that a norm or the attention scale counts stay whole."""
    sizes = {f"{group}{number}": size for group, size in (("v", 7), ("mlp", 100)) for number in range(1, 5)}
    spec = replace(spec_of(name), sizes=tuple(sizes.items()))
    full, small = model_of(name), create(spec, seed=1)
    plan = random_plan(full_sizes(spec), sizes, np.random.default_rng(3))
    state = arrays(full)
    small.load_state_dict({key: torch.from_numpy(v) for key, v in take(state, full.axes(), plan).items()})
    full.load_state_dict({key: torch.from_numpy(v) for key, v in zero_outside(state, full, plan).items()})

    batch = batch_for(full, 3)

    with torch.no_grad():
        torch.testing.assert_close(small(*batch), full(*batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_multiply_accumulates_are_counted_and_fall_with_the_width(name: str) -> None:
    counts = []
    for width in (1, 0.5):
        spec = scaled(spec_of(name), width)
        counts.append(count_macs(export(create(spec, seed=0), spec, training=False).graph))
    assert counts[0] > counts[1] > 0
