"""Which layer of a model makes its logits, by how the model computes and not by the order of its layers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.export import export
from fedwright.server_runtime.spec import ModelSpec


@lru_cache(maxsize=32)
def classifier_matrix(spec: ModelSpec) -> str | None:
    """The weights that make the logits, found on the way back from them; None where no such product is."""
    forward = export(zoo.create(spec, seed=0), spec, training=False)
    producers, name = forward.graph.producers(), forward.logits[-1]
    while name in producers:
        node = producers[name]
        for read in node.inputs if node.op in ("Gemm", "MatMul", "Conv") else ():
            while read in producers and producers[read].op in ("Transpose", "Identity"):
                read = producers[read].inputs[0]
            if read in forward.parameters:
                return read
        name = next((n for n in node.inputs if n in producers), "")
    return None


def classifier_names(spec: ModelSpec, weights: Mapping[str, NDArray[Any]]) -> list[str]:
    """Those of these weights that belong to the layer that makes the logits and have a row per class; maybe none."""
    layer = (classifier_matrix(spec) or "").rpartition(".")[0]
    return [
        name
        for name, value in weights.items()
        if layer and name.rpartition(".")[0] == layer and value.shape[:1] == (spec.classes,)
    ]
