"""How many multiply-accumulates one prediction takes, counted from the evaluation graph."""

import math

import onnx

from fedwright.server_runtime.artifacts.autodiff.graph import Graph
from fedwright.server_runtime.artifacts.sizes import Shape, sizes_at

# Rows of gates that a recurrent operator has per hidden unit.
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def count_macs(graph: Graph) -> int:
    """Multiply-accumulates of one example; of a graph model, with one node and one edge per free dimension."""
    model = graph.to_model()
    (sizes,) = sizes_at(model, 1)
    shapes = {name: shape for name, (shape, _) in sizes.items()}
    return sum(_node_macs(node, shapes) for node in model.graph.node)


def _node_macs(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    """Every output entry of a product takes as many as it sums over; all else multiplies nothing with a weight."""
    made = math.prod(shapes.get(node.output[0], ()))
    ins = [shapes.get(name, ()) for name in node.input]
    if node.op_type == "Conv":
        return made * math.prod(ins[1][1:])
    if node.op_type == "MatMul":
        return made * (ins[0][-1] if ins[0] else 0)
    if node.op_type == "Gemm":
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return made * ins[0][0 if transposed else 1]
    if node.op_type in GATES:
        steps, examples, inputs = ins[0]
        directions, _, hidden = ins[2]
        return steps * examples * directions * GATES[node.op_type] * hidden * (inputs + hidden)
    return 0
