"""Gradients of indexing against torch over random indices, repeated ones included."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwright.server_runtime.artifacts.autodiff.graph import Graph
from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(deadline=None, max_examples=8)
@given(batch=st.integers(1, 4), tokens=st.integers(1, 6), words=st.integers(2, 5))
def test_embedding_lookup(batch: int, tokens: int, words: int) -> None:
    index = np.random.default_rng(tokens).integers(0, words, (batch, tokens))
    arrays = {"i": index, "w": _normal(words, 3)}

    found = layer_gradients(lambda g: g.op("Gather", "w", "i"), arrays, batch_axes={"i": 0})

    assert relative_error(found, torch_gradients(lambda i, w: w[i], arrays)) < 1e-4


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("index", [2, [0], [1, 2], [2, 0, 2], [[0, 1], [2, 2]]], ids=str)
def test_gather_with_constant_indices_on_any_axis(axis: int, index: object) -> None:
    arrays = {"x": _normal(2, 3, 4)}
    places = np.array(index, np.int64)

    found = layer_gradients(lambda g: g.op("Gather", "x", g.constant(places), axis=axis), arrays)

    wanted = torch_gradients(lambda x: x[:, places] if axis == 1 else x[:, :, places], arrays)
    assert relative_error(found, wanted) < 1e-4


def test_steps_of_a_sequence_are_joined_by_one_concat() -> None:
    arrays = {"x": _normal(2, 3, 4)}
    built = []

    def layer(g: Graph) -> str:
        built.append(g)
        steps = [g.op("Gather", "x", g.constant(np.array(i)), axis=1) for i in range(3)]
        return g.op("Mul", g.op("Mul", steps[0], steps[1]), steps[2])

    found = layer_gradients(layer, arrays)

    assert relative_error(found, torch_gradients(lambda x: x[:, 0] * x[:, 1] * x[:, 2], arrays)) < 1e-4
    assert sum(node.op == "Concat" for node in built[0].nodes) == 1
    assert not any(node.op == "Pad" for node in built[0].nodes)


@settings(deadline=None, max_examples=6)
@given(rows=st.integers(1, 4), picks=st.integers(1, 5))
def test_gather_elements(rows: int, picks: int) -> None:
    index = np.random.default_rng(picks).integers(0, 4, (rows, picks))
    arrays = {"x": _normal(rows, 4), "i": index}

    found = layer_gradients(lambda g: g.op("GatherElements", "x", "i", axis=1), arrays, batch_axes={"x": 0, "i": 0})

    assert relative_error(found, torch_gradients(lambda x, i: torch.gather(x, 1, i), arrays)) < 1e-4


@pytest.mark.parametrize("depth", [1, 2])
def test_gather_nd(depth: int) -> None:
    index = np.random.default_rng(1).integers(0, 3, (5, depth))
    arrays = {"x": _normal(3, 3, 2), "i": index}

    found = layer_gradients(lambda g: g.op("GatherND", "x", "i"), arrays, batch_axes={"i": 0})

    wanted = torch_gradients(lambda x, i: x[i[:, 0]] if depth == 1 else x[i[:, 0], i[:, 1]], arrays)
    assert relative_error(found, wanted) < 1e-4


@settings(deadline=None, max_examples=6)
@given(edges=st.integers(1, 8), width=st.integers(1, 3))
def test_sums_over_the_edges_of_a_graph(edges: int, width: int) -> None:
    index = np.repeat(np.random.default_rng(edges).integers(0, 4, (edges, 1)), width, axis=1)
    arrays = {"x": _normal(4, width), "i": index, "u": _normal(edges, width, seed=1)}

    found = layer_gradients(
        lambda g: g.op("ScatterElements", "x", "i", "u", axis=0, reduction="add"),
        arrays,
        batch_axes={"i": 0, "u": 0},
    )

    assert relative_error(found, torch_gradients(lambda x, i, u: x.scatter_add(0, i, u), arrays)) < 1e-4


def test_overwriting_scatter() -> None:
    arrays = {"x": _normal(4, 3), "i": np.array([[0, 2, 1], [3, 0, 2]]), "u": _normal(2, 3, seed=1)}

    found = layer_gradients(
        lambda g: g.op("ScatterElements", "x", "i", "u", axis=0), arrays, batch_axes={"i": 0, "u": 0}
    )

    assert relative_error(found, torch_gradients(lambda x, i, u: x.scatter(0, i, u), arrays)) < 1e-4


def test_scatter_nd_adds_repeated_rows() -> None:
    arrays = {"x": _normal(4, 3), "i": np.array([[0], [2], [0]]), "u": _normal(3, 3, seed=1)}

    found = layer_gradients(
        lambda g: g.op("ScatterND", "x", "i", "u", reduction="add"), arrays, batch_axes={"i": 0, "u": 0}
    )

    wanted = torch_gradients(lambda x, i, u: x.index_add(0, i[:, 0], u), arrays)
    assert relative_error(found, wanted) < 1e-4


def test_the_largest_entries() -> None:
    arrays = {"x": _normal(3, 6)}

    found = layer_gradients(lambda g: g.op("TopK", "x", g.ints(2), outputs=2, axis=1)[0], arrays)

    assert relative_error(found, torch_gradients(lambda x: x.topk(2, 1).values, arrays)) < 1e-4
