"""What is not sent is made on the device, and comes out bit by bit as it was."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

from fedwright.protocol.artifact import pack, unpack
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.artifacts.compact import compact
from fedwright.server_runtime.spec import ModelSpec, Structure

TRIANGLE = np.where(np.tri(24, dtype=bool), np.float32(0), np.float32(-np.inf))
CASES: dict[str, NDArray[Any]] = {
    "the same number everywhere": np.full((7, 30), 0.5, np.float32),
    "whole numbers": np.arange(-60, 60).reshape(4, 30),
    "whole numbers as floats": np.tile(np.arange(100, dtype=np.float32), (6, 1)),
    "large whole numbers": np.arange(200) * 1000,
    "a causal mask": TRIANGLE[None, None],
    "repeated columns": np.repeat(np.random.default_rng(0).standard_normal((40, 1)).astype(np.float32), 8, axis=1),
}


def model_with(constant: NDArray[Any]) -> onnx.ModelProto:
    """A model whose output is its constant."""
    kind = helper.np_dtype_to_tensor_dtype(constant.dtype)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["y"], name="layer/Identity")],
        "test",
        [],
        [helper.make_tensor_value_info("y", kind, constant.shape)],
        [numpy_helper.from_array(constant, "c")],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def result(model: bytes) -> NDArray[Any]:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {})[0])


@pytest.mark.parametrize("constant", CASES.values(), ids=CASES)
def test_constants_shrink_and_come_back_as_they_were(constant: NDArray[Any]) -> None:
    model = model_with(constant)
    before = model.ByteSize()

    small = compact(model)

    assert len(small) < 0.7 * before
    assert result(small).tobytes() == constant.tobytes()


@pytest.mark.parametrize(
    "constant",
    [
        np.random.default_rng(0).standard_normal((9, 9)).astype(np.float32),
        np.where(np.arange(90) % 2, np.float32(-0.0), np.float32(0.0)),
        np.where(np.arange(90) % 2, np.float32(np.nan), np.float32(1.0)),
    ],
    ids=["any numbers", "signs of zeros", "nan"],
)
def test_constants_that_would_change_stay(constant: NDArray[Any]) -> None:
    assert result(compact(model_with(constant))).tobytes() == constant.tobytes()


class Block(nn.Module):
    """A ConvNeXt-like block of some six thousand weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 2, 2)
        self.mix = nn.Conv2d(24, 24, 7, padding=3, groups=24)
        self.norm = nn.LayerNorm(24)
        self.wide, self.narrow, self.head = nn.Linear(24, 96), nn.Linear(96, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Any:
        """Logits."""
        x = self.stem(x)
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        y = self.narrow(nn.functional.gelu(self.wide(y))).permute(0, 3, 1, 2)
        return self.head((x + y).mean((2, 3)))


def test_an_artifact_does_not_grow_with_the_image() -> None:
    small, large = (pack(build(Structure(ModelSpec("test", (3, n, n), 5)), Block())) for n in (32, 128))

    assert len(large) < len(small) + 500
    assert len(large) < 25_000


def test_an_artifact_has_the_same_bytes_when_it_was_read_before() -> None:
    spec = ModelSpec("mlp", (4,), 2)
    packed = pack(build(Structure(spec), zoo.create(spec, seed=0)))

    assert pack(unpack(packed)) == packed
