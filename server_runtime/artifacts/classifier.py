"""Which layer of a model makes its logits, by how the model computes and not by the order of its layers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.autodiff.graph import Node
from fedwright.server_runtime.artifacts.export import export
from fedwright.server_runtime.model_names import ONNX
from fedwright.server_runtime.spec import ModelSpec


@lru_cache(maxsize=32)
def classifier_matrix(spec: ModelSpec) -> str | None:
    """The weights that make the logits, found on the way back from them; None where no such product is."""
    return next(iter(_last_product(spec)), None)


@lru_cache(maxsize=32)
def _last_product(spec: ModelSpec) -> tuple[str, ...]:
    """Parameters of the last product on the way to the logits, its matrix first, and of what comes after it."""
    forward = export(zoo.create(spec, seed=0), spec, training=False)
    producers, name = forward.graph.producers(), forward.logits[-1]
    after: list[str] = []
    while name in producers:
        node = producers[name]
        read = [_source(name, producers) for name in node.inputs]
        own = [name for name in read if name in forward.parameters]
        if own and node.op in ("Gemm", "MatMul", "Conv"):
            return (*own, *after)
        after += own
        name = next((n for n in node.inputs if n in producers), "")
    return ()


def _source(name: str, producers: Mapping[str, Node]) -> str:
    """What a value is but for the order of its axes."""
    while name in producers and producers[name].op in ("Transpose", "Identity"):
        name = producers[name].inputs[0]
    return name


def classifier_names(spec: ModelSpec, weights: Mapping[str, NDArray[Any]]) -> list[str]:
    """Those of these weights that belong to the layer that makes the logits and have a row per class; maybe none."""
    if spec.model.startswith(ONNX):
        # Names in a file say nothing of layers.
        return [name for name in _last_product(spec) if name in weights]
    layer = (classifier_matrix(spec) or "").rpartition(".")[0]
    return [
        name
        for name, value in weights.items()
        if layer and name.rpartition(".")[0] == layer and value.shape[:1] == (spec.classes,)
    ]
