"""A model with its weights inside gives the logits of the evaluation graph that it was made from."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from fedwright.protocol.errors import BuildError
from fedwright.server_runtime.artifacts.standalone import export_model
from helpers.tiny_artifact import FEATURES, make_artifact, start_weights


def test_the_exported_model_gives_the_same_logits_and_needs_only_the_batch() -> None:
    artifact, weights = make_artifact(), start_weights()
    x = np.random.default_rng(3).normal(size=(5, FEATURES)).astype(np.float32)

    exported = ort.InferenceSession(export_model(artifact, weights | {"other": np.zeros(1)}))
    (expected,) = ort.InferenceSession(artifact.eval).run(["logits"], {"x": x, **weights})

    assert [value.name for value in exported.get_inputs()] == ["x"]
    np.testing.assert_array_equal(exported.run(["logits"], {"x": x})[0], expected)


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(BuildError, match="needs the tensor b "):
        export_model(make_artifact(), {"W": start_weights()["W"]})


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(BuildError, match=r"tensor b has shape \(5,\) but the model needs \(4,\)"):
        export_model(make_artifact(), start_weights() | {"b": np.zeros(5, np.float32)})


def test_the_names_of_classes_are_in_the_metadata() -> None:
    model = onnx.load_model_from_string(export_model(make_artifact(), start_weights(), class_names=["çat", "dog"]))
    assert {entry.key: json.loads(entry.value) for entry in model.metadata_props} == {"classes": ["çat", "dog"]}
    plain = onnx.load_model_from_string(export_model(make_artifact(), start_weights()))
    assert not plain.metadata_props
