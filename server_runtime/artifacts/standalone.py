"""A trained model as one plain ONNX file: the evaluation graph with its weights folded in."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from fedwright.protocol.artifact import Artifact
from fedwright.protocol.errors import BuildError

# The name under which a model's metadata lists its classes, as JSON, in the order of the logits.
CLASSES = "classes"


def export_model(
    artifact: Artifact,
    weights: dict[str, NDArray[np.generic]],
    *,
    class_names: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
) -> bytes:
    """The evaluation graph whose only inputs are the batch; runs on a stock onnxruntime.

    weights: every slot the graph reads and every frozen tensor; others are ignored. class_names: go into the
    model's metadata as `classes`, where there are any. notes: what else stands there, by name.
    """
    model = onnx.load_model_from_string(artifact.eval)
    graph = model.graph
    batch = set(artifact.manifest.eval_batch)
    needed = [value for value in graph.input if value.name not in batch]
    needed_names = {value.name for value in needed} | {spec.name for spec in artifact.manifest.frozen}
    missing = sorted(needed_names - weights.keys())
    if missing:
        raise BuildError(f"the model needs the tensor {missing[0]} but the weights do not have it; pass all of them")
    for value in needed:
        _check_shape(value, weights[value.name])
    kept = [tensor for tensor in graph.initializer if tensor.name not in needed_names]
    folded = [numpy_helper.from_array(np.ascontiguousarray(weights[name]), name) for name in sorted(needed_names)]
    inputs = [value for value in graph.input if value.name in batch]
    del graph.input[:], graph.initializer[:]
    graph.input.extend(inputs)
    graph.initializer.extend([*kept, *folded])
    if class_names:
        model.metadata_props.add(key=CLASSES, value=json.dumps(list(class_names), ensure_ascii=False))
    for key, text in (notes or {}).items():
        model.metadata_props.add(key=key, value=text)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _check_shape(value: onnx.ValueInfoProto, given: NDArray[np.generic]) -> None:
    shape = tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
    if shape != given.shape:
        raise BuildError(f"the tensor {value.name} has shape {given.shape} but the model needs {shape}")
