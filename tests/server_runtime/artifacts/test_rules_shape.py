"""Gradients of operators that move values around, against torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.graph import Graph
from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LAYERS = {
    "reshape": (lambda g: g.op("Reshape", "x", g.ints(-1, 12)), lambda x: x.reshape(-1, 12)),
    "flatten": (lambda g: g.op("Flatten", "x", axis=1), lambda x: x.flatten(1)),
    "unsqueeze": (lambda g: g.op("Unsqueeze", "x", g.ints(1)), lambda x: x.unsqueeze(1)),
    "squeeze": (lambda g: g.op("Squeeze", g.op("Unsqueeze", "x", g.ints(1)), g.ints(1)), lambda x: x * 1),
    "transpose": (lambda g: g.op("Transpose", "x", perm=[2, 0, 1]), lambda x: x.permute(2, 0, 1)),
    "reversed": (lambda g: g.op("Transpose", "x"), lambda x: x.permute(2, 1, 0)),
    "expand": (
        lambda g: g.op("Expand", g.op("Unsqueeze", "x", g.ints(1)), g.ints(1, 3, 1, 1)),
        lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1),
    ),
    "tile": (lambda g: g.op("Tile", "x", g.ints(1, 2, 3)), lambda x: x.repeat(1, 2, 3)),
    "pad": (
        lambda g: g.op("Pad", "x", g.ints(0, 1, 2, 0, 0, 1)),
        lambda x: torch.nn.functional.pad(x, (2, 1, 1, 0)),
    ),
    "resize": (
        lambda g: g.op("Resize", "x", "", g.constant(np.array([1, 1, 2], np.float32)), mode="linear"),
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="linear"),
    ),
    "crop": (lambda g: g.op("Pad", "x", g.ints(0, -1, 0, 0, 0, -2)), lambda x: x[:, 1:, :-2]),
}


@pytest.mark.parametrize("name", LAYERS)
@settings(deadline=None, max_examples=3)
@given(batch=st.integers(1, 4))
def test_moves(name: str, batch: int) -> None:
    layer, reference = LAYERS[name]
    arrays = {"x": _normal(batch, 3, 4)}

    assert relative_error(layer_gradients(layer, arrays), torch_gradients(reference, arrays)) < 1e-4


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    arrays = {"x": _normal(2, 8, 2, 3)}

    def reference(x: torch.Tensor) -> torch.Tensor:
        order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
        return x.reshape(2, 2, 2, 2, 2, 3).permute(order).reshape(2, 2, 4, 6)

    found = layer_gradients(lambda g: g.op("DepthToSpace", "x", blocksize=2, mode=mode), arrays)

    assert relative_error(found, torch_gradients(reference, arrays)) < 1e-4


def test_space_to_depth() -> None:
    arrays = {"x": _normal(2, 3, 4, 6)}

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 3, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(2, 12, 2, 3)

    found = layer_gradients(lambda g: g.op("SpaceToDepth", "x", blocksize=2), arrays)

    assert relative_error(found, torch_gradients(reference, arrays)) < 1e-4


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(upper: int) -> None:
    arrays = {"x": _normal(2, 4, 4)}

    found = layer_gradients(lambda g: g.op("Trilu", "x", upper=upper), arrays)

    assert relative_error(found, torch_gradients(lambda x: x.triu() if upper else x.tril(), arrays)) < 1e-4


@settings(deadline=None, max_examples=12)
@given(start=st.integers(-6, 5), stop=st.integers(-6, 6), step=st.sampled_from([1, 2, 3]), also_rows=st.booleans())
def test_slices(start: int, stop: int, step: int, also_rows: bool) -> None:
    picked = range(6)[start:stop:step]
    starts, ends, axes, steps = [start], [stop], [2], [step]
    if also_rows:
        starts, ends, axes, steps = [start, 1], [stop, 3], [2, 1], [step, 1]
    arrays = {"x": _normal(2, 4, 6)}

    def layer(g: Graph) -> str:
        return g.op("Slice", "x", g.ints(*starts), g.ints(*ends), g.ints(*axes), g.ints(*steps))

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:3, start:stop:step] if also_rows else x[:, :, start:stop:step]

    if picked:
        assert relative_error(layer_gradients(layer, arrays), torch_gradients(reference, arrays)) < 1e-4


def test_a_backward_slice() -> None:
    arrays = {"x": _normal(2, 6)}

    def layer(g: Graph) -> str:
        return g.op("Slice", "x", g.ints(-1), g.ints(-(2**31)), g.ints(1), g.ints(-2))

    assert relative_error(layer_gradients(layer, arrays), torch_gradients(lambda x: x.flip(1)[:, ::2], arrays)) < 1e-4


@settings(deadline=None, max_examples=6)
@given(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4), axis=st.sampled_from([1, 2]))
def test_concat_and_split(sizes: list[int], axis: int) -> None:
    total = sum(sizes)
    arrays = {"x": _normal(2, total, total), "w": _normal(2, total, total, seed=1)}

    def layer(g: Graph) -> str:
        parts = g.op("Split", "x", g.ints(*sizes), outputs=len(sizes), axis=axis)
        return g.op("Concat", *reversed(parts), "w", axis=axis)

    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cat([*reversed(x.split(sizes, axis)), w], axis)

    found = layer_gradients(layer, arrays, batch_axes={"x": 0, "w": 0})
    assert relative_error(found, torch_gradients(reference, arrays)) < 1e-4


def test_concat_with_a_constant_takes_only_its_own_part() -> None:
    arrays = {"x": _normal(2, 3), "w": _normal(4, 3, seed=1)}

    def layer(g: Graph) -> str:
        table = g.op("Concat", g.constant(np.ones((2, 3), np.float32)), "w", axis=0)
        return g.op("Gemm", "x", table, transB=1)

    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ torch.cat([torch.ones(2, 3, dtype=w.dtype), w]).T

    assert relative_error(layer_gradients(layer, arrays), torch_gradients(reference, arrays)) < 1e-4


def test_slices_that_overlap_and_leave_gaps_are_added() -> None:
    arrays = {"x": _normal(2, 9)}

    def layer(g: Graph) -> str:
        first = g.op("Slice", "x", g.ints(1), g.ints(4), g.ints(1))
        second = g.op("Slice", "x", g.ints(3), g.ints(6), g.ints(1))
        third = g.op("Slice", "x", g.ints(5), g.ints(8), g.ints(1))
        return g.op("Mul", g.op("Mul", first, second), third)

    found = layer_gradients(layer, arrays)

    wanted = torch_gradients(lambda x: x[:, 1:4] * x[:, 3:6] * x[:, 5:8], arrays)
    assert relative_error(found, wanted) < 1e-4


def test_reflecting_the_batch_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedOperator, match="Pad of mode reflect along a free size"):
        layer_gradients(lambda g: g.op("Pad", "x", g.ints(1, 0, 1, 0), mode="reflect"), {"x": _normal(2, 4)})
