"""Groups of nodes that are differentiated as one keep their values and save work."""

import onnx
import torch
from torch import nn

from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.artifacts.export import export
from fedwright.server_runtime.spec import ModelSpec
from helpers.graphs import structure_of


class Attention(nn.Module):
    """Scaled attention without parameters around it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 2.0
        answer: torch.Tensor = self.head((scores.softmax(-1) @ self.value(x)).mean(1))
        return answer


def test_gelu_is_one_group_that_needs_only_its_input() -> None:
    forward = export(
        nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), ModelSpec("test", (6,), 3), training=True
    )

    (composite,) = forward.graph.composites.values()
    (first,) = [node for node in forward.graph.nodes if node.module == "0"]
    assert composite.inputs == (first.outputs[0],)


def test_another_use_of_erf_is_left_alone() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1 + torch.erf(x / 3.0)) * 0.5

    forward = export(nn.Sequential(nn.Linear(6, 3), Odd()), ModelSpec("test", (6,), 3), training=True)

    assert not forward.graph.composites


def test_a_scale_moves_to_the_smaller_side_of_a_product() -> None:
    forward = export(Attention(), ModelSpec("test", (9, 4), 3), training=True)

    ops = [node.op for node in forward.graph.nodes]
    assert "Div" not in ops
    scale = forward.graph.nodes[ops.index("Mul")]
    assert forward.graph.shape(scale.outputs[0]) == (-1, 9, 4)


def test_the_backward_pass_of_attention_reduces_the_short_side() -> None:
    artifact = build(structure_of((9, 4), 3), Attention())

    nodes = onnx.load_from_string(artifact.train).graph.node
    # three products forward and backward over the sequence, and no softmax rule with its extra passes
    assert sum(node.op_type == "MatMul" for node in nodes) == 6
    assert sum(node.op_type == "Softmax" for node in nodes) == 1
