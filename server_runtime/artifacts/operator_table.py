"""The table of operators that the manifest carries: what a step computes, by kind, at a few batch sizes."""

import onnx
from onnx import shape_inference

from fedwright.protocol.operator_costs import FEATURES, features
from fedwright.protocol.predictor import WORK_BATCHES
from fedwright.server_runtime.artifacts.autodiff.graph import Graph

Shape = tuple[int, ...]

# What onnxruntime has no kernel for and runs as several: each with how often it reads the input.
EXPANDED = {"HardSwish": (("HardSigmoid", 1), ("Mul", 2))}


def tabulate(graph: Graph) -> dict[str, list[float]]:
    """Kind -> FEATURES at each of WORK_BATCHES."""
    model = graph.to_model()
    fused = _fused(model)
    table: dict[str, list[float]] = {}
    for place, batch in enumerate(WORK_BATCHES):
        shapes = shapes_at(model, batch)
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


def shapes_at(model: onnx.ModelProto, batch: int) -> dict[str, Shape]:
    """The shape of every value when all free dimensions are `batch`."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = batch
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    del fixed.graph.value_info[:]
    inferred = shape_inference.infer_shapes(fixed, data_prop=True).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in inferred.initializer}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        dims = value.type.tensor_type.shape.dim
        shapes[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else batch for dim in dims)
    return shapes
