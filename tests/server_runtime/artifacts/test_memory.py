"""The order in which a step runs, and the memory that follows from it."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from torch import nn

from fedwright.protocol.artifact import Artifact
from fedwright.server_runtime.artifacts.autodiff.graph import Graph, Node
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.artifacts.memory import execution_order
from fedwright.server_runtime.spec import Optimizer
from helpers.graphs import structure_of


def _artifact() -> Artifact:
    layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.ReLU())]
    return build(structure_of((16,), 3, optimizer=Optimizer(momentum=0.9)), nn.Sequential(*layers, nn.Linear(16, 3)))


def _graph(model: onnx.ModelProto) -> Graph:
    graph = Graph()
    graph.nodes = [Node(n.op_type, list(n.input), list(n.output), name=n.name) for n in model.graph.node]
    return graph


def test_the_runtime_runs_nodes_in_the_predicted_order(tmp_path: Path) -> None:
    artifact = _artifact()
    model = onnx.load_from_string(artifact.train)
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "step")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {slot.name: np.zeros(slot.shape, np.float32) for slot in artifact.manifest.slots}
    feed |= {"x": np.ones((2, 16), np.float32), "y": np.zeros(2, np.int64), "learning_rate": np.array(0.1, np.float32)}

    session.run(None, feed)

    events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event for event in events if event["name"].endswith("_kernel_time")]
    ran = [event["name"].removesuffix("_kernel_time") for event in sorted(kernels, key=lambda event: event["ts"])]
    assert ran == [node.name for node in execution_order(_graph(model))]


def test_updates_run_as_soon_as_their_gradient_is_there() -> None:
    order = execution_order(_graph(onnx.load_from_string(_artifact().train)))

    written = [name for node in order for name in node.outputs if name.startswith("next/") and "momentum" not in name]
    layers = [int(name.split("/")[1].split(".")[0]) for name in written]
    assert layers == sorted(layers, reverse=True)
    # when the last layer is updated, the gradient of the first is still to come
    place = next(i for i, node in enumerate(order) if "next/8.weight" in node.outputs)
    assert place < 0.6 * len(order)
