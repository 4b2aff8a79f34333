"""Building an artifact stays cheap: so many calls for each node of the graph, and no faster growth than the model's."""

from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from torch import nn

from fedwright.server_runtime.artifacts import capture
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.artifacts.symbolics.registry import Uncaptured
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from helpers.cost import Work, count_calls, least_cpu_s
from helpers.graphs import followed_anew

LENET = ModelSpec("lenet", (1, 28, 28), 10)
RESNET = ModelSpec("resnet18", (3, 32, 32), 10)
# 964 for LeNet, 842 for ResNet-18 (onnx 1.23, torch 2.13), a third of them to follow samples to every output.
CALLS_PER_NODE = 1200
# ResNet-18 has 9 times the nodes and 52 times the weights of LeNet; it costs 25 times as much.
GROWTH = 60


def building(spec: ModelSpec) -> Work:
    """Builds the artifact of a model that is there already."""
    module = followed_anew(spec)
    return lambda: build(Structure(spec, optimizer=Optimizer(momentum=0.9)), module)


@pytest.fixture(autouse=True)
def without_torch_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.export costs is torch's, three times the calls of the rest; tracing is native code."""

    def nothing(*_: object) -> None:
        raise Uncaptured("not asked")

    monkeypatch.setattr(capture, "captured", nothing)


@pytest.mark.parametrize("spec", [LENET, RESNET], ids=["lenet", "resnet18"])
def test_calls_of_a_build(spec: ModelSpec) -> None:
    work = building(spec)
    work()
    artifact = build(Structure(spec, optimizer=Optimizer(momentum=0.9)), followed_anew(spec))
    nodes = len(onnx.load_from_string(artifact.train).graph.node)

    assert count_calls(work) < CALLS_PER_NODE * nodes
    assert len(artifact.train) < 400_000


def test_cpu_time_grows_no_faster_than_the_model() -> None:
    small, large = building(LENET), building(RESNET)
    small()

    small_s, large_s = least_cpu_s(small, large, repeats=3)

    assert large_s < GROWTH * small_s


def test_a_wide_depthwise_kernel_is_sent_small_and_multiplied_out_once(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Conv2d(8, 8, 7, 1, 3, groups=8), nn.Flatten(), nn.Linear(512, 3))

    train = build(Structure(ModelSpec("test", (8, 8, 8), 3)), layers).train

    # The 0/1 matrix of 49 taps x 64 x 64 places alone is 803 kB.
    assert len(train) < 20_000
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "session.onnx")
    ort.InferenceSession(train, options, providers=["CPUExecutionProvider"])
    folded = {tuple(tensor.dims) for tensor in onnx.load(tmp_path / "session.onnx").graph.initializer}
    assert (49, 64 * 64) in folded
