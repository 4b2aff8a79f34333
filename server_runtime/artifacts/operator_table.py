"""The table of operators that the manifest carries: what a step computes, by kind, at a few batch sizes."""

from collections.abc import Mapping

import onnx

from fedwright.protocol.operator_costs import FEATURES, features
from fedwright.protocol.predictor import WORK_BATCHES
from fedwright.server_runtime.artifacts.sizes import Sizes, sizes_at

# What onnxruntime has no kernel for and runs as several: each with how often it reads the input.
EXPANDED = {"HardSwish": (("HardSigmoid", 1), ("Mul", 2))}


def tabulate(model: onnx.ModelProto, sizes: Mapping[int, Sizes]) -> dict[str, list[float]]:
    """Kind -> FEATURES at each of WORK_BATCHES, from the sizes of the model's values at these."""
    fused = _fused(model)
    table: dict[str, list[float]] = {}
    for place, batch in enumerate(WORK_BATCHES):
        shapes = {name: shape for name, (shape, _) in sizes[batch].items()}
        for node in model.graph.node:
            if node.output[0] in fused:
                continue
            ins = [shapes.get(name, ()) for name in node.input if name]
            outs = [shapes.get(name, ()) for name in node.output if name]
            for op, read in EXPANDED.get(node.op_type, ((node.op_type, 0),)):
                kind, amounts = features(op, ins * read or ins, outs)
                row = table.setdefault(kind, [0.0] * (len(FEATURES) * len(WORK_BATCHES)))
                for index, amount in enumerate(amounts):
                    row[place * len(FEATURES) + index] += float(round(amount))
    return dict(sorted(table.items()))


def tabulate_once(model: onnx.ModelProto) -> dict[str, list[float]]:
    """Kind -> FEATURES of a model that no batch changes."""
    known = sizes_at(model, 1)[0]
    table = tabulate(model, dict.fromkeys(WORK_BATCHES, known))
    return {kind: row[: len(FEATURES)] for kind, row in table.items()}


def _fused(model: onnx.ModelProto) -> set[str]:
    """Transposed matrices that only products read: onnxruntime lets the product read the original."""
    readers: dict[str, set[str]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    kept = {value.name for value in model.graph.output}
    return {
        node.output[0]
        for node in model.graph.node
        if node.op_type == "Transpose"
        and readers.get(node.output[0]) == {"MatMul"}
        and node.output[0] not in kept
        and _swaps_last(list(node.attribute[0].ints) if node.attribute else [])
    }


def _swaps_last(order: list[int]) -> bool:
    last = len(order) - 1
    return last > 0 and order == [*range(last - 1), last, last - 1]
