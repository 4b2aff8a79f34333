"""Models cut into blocks and put together anew: every zoo model, a user's own, names, and the same logits as ONNX."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.artifacts.standalone import export_model
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.server_runtime.zoo import MODELS
from fedwright.server_runtime.zoo.stitched import assemble, cut, spell

BLOCKS = {
    "cnn1": 4, "cnn2": 5, "cnn3": 9, "cnn4": 9, "mobilenet-v1": 15, "mobilenet-v2": 20, "mobilenet-v3": 15,
    "lstm-lm": 1, "gcn4": 1, "cnn-exits": 1, "resnet8": 5, "mlp": 3,
}  # fmt: skip
LIKE = ModelSpec("cnn1", (1, 28, 28), 10)


@pytest.mark.parametrize("name", BLOCKS)
def test_models_are_cut_into_their_blocks(name: str) -> None:
    entry = MODELS[name]
    module = zoo.create(ModelSpec(name, entry.example_shape, entry.example_classes), seed=1)
    found = cut(module, entry.example_shape)
    assert len(found.blocks) == BLOCKS[name]
    assert sum(part.parameters for part in found.parts) == sum(value.numel() for value in module.parameters())
    assert [part.head for part in found.parts] == [False] * (len(found.parts) - 1) + [True]


def test_recurrent_nets_stay_whole() -> None:
    spec = ModelSpec("lstm-lm", (5,), 20)
    module = zoo.create(spec, seed=0)
    assert cut(module, (5,)).blocks == (module,)


def test_a_sequential_module_is_cut_into_units() -> None:
    spec = ModelSpec("python:helpers.own_module:make", (1, 16, 16), 10)
    found = cut(zoo.create(spec, seed=0), (1, 16, 16))
    assert [part.gives for part in found.parts] == [(6, 8, 8), (8, 4, 4), (20,), (10,)]
    assert [part.flat for part in found.parts] == [False, False, True, True]


def test_a_module_is_cut_by_its_graph_and_sums_stay_whole() -> None:
    module = zoo.create(ModelSpec("python:helpers.own_module:make_written", (1, 16, 16), 3), seed=0).eval()
    found = cut(module, (1, 16, 16))
    assert [part.gives for part in found.parts] == [(4, 8, 8), (4, 8, 8), (6,), (12,), (3,)]
    assert [part.flat for part in found.parts] == [False, False, False, True, True]
    assert sum(part.parameters for part in found.parts) == sum(value.numel() for value in module.parameters())
    assert sorted(name for name, _ in found.blocks[1].named_parameters()) == [
        f"body.{name}"
        for name in ("first.bias", "first.weight", "norm.bias", "norm.weight", "second.bias", "second.weight")
    ]
    x = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    made = x
    for block in found.blocks:
        made = block(made)
    torch.testing.assert_close(made, module(x))


def test_a_shortcut_over_one_layer_is_a_block_of_it() -> None:
    module = zoo.create(ModelSpec("python:helpers.own_module:make_tangled", (1, 4, 4), 3), seed=0)
    assert [(part.gives, part.parameters) for part in cut(module, (1, 4, 4)).parts] == [((16,), 272), ((3,), 51)]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("make_branching", "its forward pass cannot be traced"),
        ("make_parallel", "no single tensor passes"),
    ],
)
def test_a_module_that_cannot_be_cut_stays_whole_and_says_why(name: str, why: str) -> None:
    module = zoo.create(ModelSpec(f"python:helpers.own_module:{name}", (1, 4, 4), 3), seed=0)
    found = cut(module, (1, 4, 4))
    assert found.blocks == (module,)
    assert why in found.why


def test_a_models_own_blocks_in_order_are_the_model() -> None:
    spec = zoo.named("cnn2", LIKE)
    model = zoo.create(spec, seed=3).eval()
    again: Any = zoo.create(ModelSpec(spell([("cnn2", i) for i in range(5)]), (1, 28, 28), 10), seed=3).eval()
    again.blocks.load_state_dict(
        {f"{i}.{k}": v for i, b in enumerate(cut(model, (1, 28, 28)).blocks) for k, v in b.state_dict().items()}
    )
    x = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(again(x), model(x))
    assert not list(again.stitches.parameters())


def test_only_blocks_that_change_are_copied_when_asked_for() -> None:
    plain = torch.nn.Conv2d(1, 4, 3)
    counted = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4))
    last = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    found = cut(torch.nn.Sequential(plain, counted, last), (1, 8, 8))
    blocks = (plain, counted, last)
    shared = assemble(blocks, found.parts, (1, 8, 8), shared=True)
    assert [own is block for own, block in zip(shared.blocks, blocks, strict=True)] == [True, False, True]
    assert not any(own in blocks for own in assemble(blocks, found.parts, (1, 8, 8)).blocks)
    twice = assemble((plain, plain, last), [found.parts[0], found.parts[0], found.parts[2]], (1, 8, 8), shared=True)
    assert {"blocks.0.weight", "blocks.1.weight"} <= initial_weights(twice).keys()


@pytest.mark.parametrize(
    "name",
    [
        "stitched:cnn3@0.25#1|cnn1#1|cnn4@0.125#6|cnn3@0.25#6|cnn1#3",
        "dense:cnn1#0|mobilenet-v1@0.125#13|cnn3@0.25#7|classes",
        "stitched:python:helpers.own_module:make#0|cnn1#1|cnn1#2|cnn1#3",
        "stitched:cnn1#0|python:helpers.own_module:make_written#1|python:helpers.own_module:make_written#3|cnn1#3",
    ],
)
def test_a_stitched_model_says_the_same_in_onnx(name: str) -> None:
    spec = ModelSpec(name, (1, 28, 28), 10)
    module = zoo.create(spec, seed=2).eval()
    x = np.random.default_rng(0).random((3, 1, 28, 28), np.float32)
    session = ort.InferenceSession(export_model(build(Structure(spec), module), initial_weights(module)))
    with torch.no_grad():
        wanted = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["cnn1", "cnn4@0.125", "mobilenet-v2@0.3", "mobilenet-v3@0.1", "cnn3@0.77"])
def test_names_and_specs_stand_for_one_another(name: str) -> None:
    spec = zoo.named(name, LIKE)
    assert zoo.named(zoo.spelled(spec), LIKE) == spec


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("stitched:cnn1#0|cnn1", "a piece is a model's name"),
        ("stitched:cnn1#9", "asks for block 9 of cnn1, which has 4"),
        ("stitched:cnn1#2|cnn1#0|cnn1#3", "cannot follow"),
        ("stitched:nothing#1", "unknown model 'nothing'"),
    ],
)
def test_bad_names_say_what_is_wrong(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        zoo.create(ModelSpec(name, (1, 28, 28), 10), seed=0)


@pytest.mark.parametrize("name", ["cnn1@0", "cnn1@wide", "cnn1@1.5"])
def test_bad_widths_are_named(name: str) -> None:
    with pytest.raises(ConfigError, match="asks for the width"):
        zoo.named(name, LIKE)
