"""Gradients of matrix products against torch over random shapes."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwright.protocol.errors import UnsupportedOperator
from fedwright.server_runtime.artifacts.autodiff.graph import Graph
from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients

SIZE = st.integers(1, 5)


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(deadline=None, max_examples=12)
@given(m=SIZE, k=SIZE, n=SIZE, flips=st.tuples(st.booleans(), st.booleans()), factors=st.sampled_from([1.0, 0.7]))
def test_gemm(m: int, k: int, n: int, flips: Any, factors: float) -> None:
    arrays = {
        "x": _normal(*((k, m) if flips[0] else (m, k))),
        "w": _normal(*((n, k) if flips[1] else (k, n)), seed=1),
        "b": _normal(n, seed=2),
    }
    attrs: dict[str, Any] = {"transA": int(flips[0]), "transB": int(flips[1]), "alpha": factors, "beta": 2 * factors}

    found = layer_gradients(
        lambda g: g.op("Gemm", "x", "w", "b", **attrs), arrays, batch_axes={"x": 1 if flips[0] else 0}
    )

    def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return factors * (x.T if flips[0] else x) @ (w.T if flips[1] else w) + 2 * factors * b

    assert relative_error(found, torch_gradients(reference, arrays)) < 1e-4


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 6, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 6, 3, 4), (2, 6, 4, 5)),
        ((2, 6, 3, 4), (6, 4, 5)),
        ((2, 6, 3, 4), (1, 1, 4, 5)),
        ((2, 3, 4), (4,)),
        ((4,), (4, 5)),
    ],
    ids=str,
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    arrays = {"x": _normal(*left), "w": _normal(*right, seed=1)}
    shared = len(left) > 2 and len(left) == len(right) and left[0] == right[0]
    axes = {"x": 0, "w": 0} if shared else {"x": 0} if len(left) > 1 else {"w": 1}

    found = layer_gradients(lambda g: g.op("MatMul", "x", "w"), arrays, batch_axes=axes)

    assert relative_error(found, torch_gradients(lambda x, w: x @ w, arrays)) < 1e-4


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("bik,bjk->bij", (3, 2, 4), (3, 5, 4)),
        ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)),
        ("...ik,kj->...ij", (2, 3, 4), (4, 5)),
        ("bi,j->bij", (3, 2), (4,)),
        ("bi,j->bj", (3, 2), (4,)),
        ("bijk,jl->bl", (2, 3, 4, 5), (4, 6)),
    ],
)
def test_einsum(equation: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    arrays = {"x": _normal(*left), "w": _normal(*right, seed=1)}
    shared = equation.split("->")[0].split(",")[1].startswith("b")

    found = layer_gradients(
        lambda g: g.op("Einsum", "x", "w", equation=equation),
        arrays,
        batch_axes={"x": 0, "w": 0} if shared else {"x": 0},
    )

    assert relative_error(found, torch_gradients(lambda x, w: torch.einsum(equation, x, w), arrays)) < 1e-4


def test_einsum_with_a_repeated_label_is_refused_by_name() -> None:
    arrays = {"x": _normal(3, 2), "w": _normal(4, 4)}

    with pytest.raises(UnsupportedOperator, match="Einsum with a repeated label"):
        layer_gradients(lambda g: g.op("Einsum", "x", "w", equation="bi,jj->bi"), arrays)


def test_many_uses_of_one_weight_make_one_product() -> None:
    arrays = {"x": _normal(3, 4), "w": _normal(4, 4, seed=1), "b": _normal(4, seed=2)}
    built = []

    def layer(g: Graph) -> str:
        built.append(g)
        value = "x"
        for _ in range(3):
            value = g.op("Tanh", g.op("Gemm", value, "w", "b"))
        return value

    def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(x @ w + b)
        return x

    assert relative_error(layer_gradients(layer, arrays), torch_gradients(reference, arrays)) < 1e-4
    # three forward products, three for the inputs, one for the weight
    assert sum(node.op == "Gemm" for node in built[0].nodes) == 7
