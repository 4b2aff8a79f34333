"""Adapters in any module: no change at first, merged exactly, trained alone, also where PEFT put them."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.blocks.lora import merge
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.server_runtime.zoo.adapter_models import adapted, with_rank, without_adapters
from fedwright.server_runtime.zoo.low_rank import adapt, is_target
from fedwright.server_runtime.zoo.peft_layers import unwrapped

OWN = "python:helpers.own_models:"
SHAPE, CLASSES = (1, 8, 8), 4
CASES: dict[str, tuple[str, str | tuple[str, ...], int]] = {
    # 6·9 inputs of the second convolution and 8 outputs; 128 and 20 of the linear layer, at rank 2.
    "convolution and linear": (OWN + "cnn", ("4", "8"), 2 * (54 + 8) + 2 * (128 + 20)),
    # In each of two layers query, key, value and output of width 16, and a linear layer of 16 to 24.
    "attention": (OWN + "transformer", ("self_attn", "linear1"), 2 * (4 * 2 * 32 + 2 * 40)),
    "a part of attention": (OWN + "transformer", r"encoder\.layers\.0\.self_attn\.out_proj", 2 * 32),
    "zoo": ("lenet", r".*fc1\.1|head", 0),
}


def spec_of(case: str, rank: int = 2) -> ModelSpec:
    model, targets, _ = CASES[case]
    shape = (3, 32, 32) if model == "lenet" else SHAPE
    return adapted(ModelSpec(model, shape, CLASSES), targets, rank=rank, scale=2.0)


def moved(module: nn.Module) -> nn.Module:
    """Adapters that do something."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name in zoo.adapter_names(module):
            module.get_parameter(name).normal_(0.0, 0.1, generator=generator)
    return module


def outputs(module: nn.Module, spec: ModelSpec) -> Tensor:
    batch = torch.randn(3, *spec.input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found: Tensor = module.eval()(batch)
    return found


@pytest.mark.parametrize("case", CASES)
def test_adapters_begin_as_no_change_and_merge_exactly(case: str) -> None:
    spec = spec_of(case)
    plain_spec = without_adapters(spec)
    assert plain_spec is not None
    plain, module = zoo.create(plain_spec, seed=1), zoo.create(spec, seed=1)
    torch.testing.assert_close(outputs(module, spec), outputs(plain, spec))
    moved(module)
    assert not torch.allclose(outputs(module, spec), outputs(plain, spec), atol=1e-3)
    merged = merge(initial_weights(module), 2.0)
    plain.load_state_dict({n: torch.from_numpy(v) for n, v in merged.items()}, strict=False)
    torch.testing.assert_close(outputs(plain, spec), outputs(module, spec), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["convolution and linear", "attention", "a part of attention"])
def test_the_size_of_adapters(case: str) -> None:
    module = zoo.create(spec_of(case), seed=1)
    assert sum(module.get_parameter(name).numel() for name in zoo.adapter_names(module)) == CASES[case][2]
    single = zoo.create(with_rank(spec_of(case), 1), seed=1)
    assert 2 * sum(single.get_parameter(name).numel() for name in zoo.adapter_names(single)) == CASES[case][2]


@pytest.mark.parametrize("case", ["convolution and linear", "attention"])
def test_a_step_on_a_device_is_torchs(case: str) -> None:
    """Only adapters move, by as much as torch moves them; layers with running statistics stand still."""
    spec = spec_of(case)
    module = moved(zoo.create(spec, seed=1))
    names, weights = zoo.adapter_names(module), initial_weights(module)
    artifact = Builder().build(Structure(spec, trainable=names))
    frozen = {name: value for name, value in weights.items() if name not in names}
    trainer = PortableTrainer(artifact, sides={}, frozen=frozen)
    trainer.load({name: weights[name] for name in names})
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, *spec.input_shape)).astype(np.float32), rng.integers(0, CLASSES, 6)
    trainer.step({"x": x, "y": y}, learning_rate=0.1, seed=0)
    twin = copy.deepcopy(module).eval()
    nn.functional.cross_entropy(twin(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    for name, value in trainer.weights().items():
        grad = twin.get_parameter(name).grad
        assert grad is not None
        np.testing.assert_allclose(value, weights[name] - 0.1 * grad.numpy(), rtol=1e-3, atol=1e-5)


def test_names_are_matched_as_peft_matches_them() -> None:
    assert is_target("layers.0.attn.q", ("q", "v"))
    assert not is_target("layers.0.attn.seq", ("q",))
    assert is_target("q", ("q",))
    assert is_target("layers.0.fc1", r".*fc[12]")
    assert not is_target("layers.0.fc1.inner", r".*fc[12]")


REFUSED = {
    "no such layer": (("nothing",), "no layer has such a name.*such as 0, 4, 8, 10"),
    "no layer of weights": (("1",), "1 is a BatchNorm2d"),
}


@pytest.mark.parametrize(("targets", "problem"), REFUSED.values(), ids=REFUSED)
def test_targets_that_find_nothing(targets: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        adapt(zoo.create(ModelSpec(OWN + "cnn", SHAPE, CLASSES), seed=0), targets, rank=1)


class PeftLayer(nn.Module):
    """Built as peft.tuners.lora.Linear and Conv2d are."""

    def __init__(self, base: Any, rank: int, alpha: float) -> None:
        super().__init__()
        self.base_layer = base
        is_conv = isinstance(base, nn.Conv2d)
        kernel = {"kernel_size": base.kernel_size, "stride": base.stride, "padding": base.padding} if is_conv else {}
        down = nn.Conv2d(base.in_channels, rank, bias=False, **kernel) if is_conv else None
        up = nn.Conv2d(rank, base.out_channels, 1, bias=False) if is_conv else None
        self.lora_A = nn.ModuleDict({"default": down or nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": up or nn.Linear(rank, base.out_features, bias=False)})
        self.scaling = {"default": alpha / rank}
        base.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """As PEFT computes it."""
        added: Tensor = self.lora_B["default"](self.lora_A["default"](x)) * self.scaling["default"]
        answer: Tensor = added + self.base_layer(x)
        return answer


class PeftModel(nn.Module):
    """Built as peft.PeftModel is: the model two levels below."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.peft_config = {"default": object()}
        self.base_model = nn.ModuleDict({"model": model})

    def get_base_model(self) -> nn.Module:
        """The model with its wrapped layers."""
        return self.base_model["model"]


def wrapped() -> tuple[nn.Sequential, PeftModel]:
    """A model with wrapped layers, and what a user gets of PEFT."""
    bare = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, CLASSES))
    bare[0], bare[3] = PeftLayer(bare[0], 2, 8.0), PeftLayer(bare[3], 2, 8.0)
    return bare, PeftModel(bare)


def test_what_peft_wrapped_computes_the_same_as_ours() -> None:
    torch.manual_seed(0)
    bare, model = wrapped()
    x = torch.randn(3, *SHAPE)
    before = bare(x)
    ours = unwrapped(model)
    torch.testing.assert_close(ours(x), before, rtol=1e-4, atol=1e-5)
    assert zoo.adapter_names(ours) == ("0.lora_down", "0.lora_up", "3.lora_down", "3.lora_up")
    assert {"0.weight", "0.bias", "3.weight"} <= ours.state_dict().keys()
    assert all(value.requires_grad for value in ours.parameters())


def test_two_adapters_of_peft_are_one_too_many() -> None:
    bare, model = wrapped()
    layer: Any = bare[0]
    layer.lora_A["second"] = nn.Conv2d(1, 2, 3)
    with pytest.raises(ConfigError, match=r"0 has 2 PEFT adapters \(default, second\); keep one"):
        unwrapped(model)
