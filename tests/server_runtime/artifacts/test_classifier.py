"""The layer that makes the logits is found by what a model computes, whatever order its layers have."""

import numpy as np
import pytest

from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.artifacts.classifier import classifier_names
from fedwright.server_runtime.methods.baselines.averaging.private_layers import HeadPrivate
from fedwright.server_runtime.methods.baselines.fedgh import head_names
from fedwright.server_runtime.methods.baselines.heterofl import HeteroFL
from fedwright.server_runtime.methods.fedconv.method import FedConv
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.methods.params.submodels import HeteroFLParams
from fedwright.server_runtime.methods.shared.generated_models import mask_logits
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import setting

# With twelve classes its second layer has a row per class, too, and is the last one that it names.
SPEC = ModelSpec("python:helpers.own_models:head_first", (1, 8, 8), 12)
HEAD = ["answer.weight", "answer.bias"]
WEIGHTS = initial_weights(zoo.create(SPEC, seed=1))


def test_another_layer_of_as_many_rows_is_not_taken_for_it() -> None:
    assert classifier_names(SPEC, WEIGHTS) == HEAD


@pytest.mark.parametrize("model", ["cnn-gn", "lenet", "vit-tiny", "resnet8", "mobilenet-v2"])
def test_models_of_the_zoo_end_in_their_heads(model: str) -> None:
    spec = ModelSpec(model, (3, 32, 32), 7)
    found = classifier_names(spec, initial_weights(zoo.create(spec, seed=1)))
    assert [name.rpartition(".")[0] for name in found] == ["head", "head"]


def test_methods_go_by_it() -> None:
    own = setting(spec=SPEC, initial=WEIGHTS)
    assert HeteroFL(HeteroFLParams(), own)._classifier == HEAD
    assert HeadPrivate.private_names(HeadPrivate.__new__(HeadPrivate), own) == frozenset(HEAD)
    assert head_names(SPEC, WEIGHTS) == {"weight": "answer.weight", "bias": "answer.bias"}
    assert FedConv(FedConvParams(), own)._server._head == HEAD


def test_classes_that_a_device_lacks_are_masked_there() -> None:
    owned = np.array([1, 1, *[0] * 10], np.float32)
    masked = mask_logits(SPEC, WEIGHTS, owned)
    assert list(masked) == ["answer.bias"]
    assert (masked["answer.bias"][2:] < -1000).all()
