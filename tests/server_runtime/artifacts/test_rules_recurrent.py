"""nn.LSTM in plain operators against torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwright.protocol.errors import UnsupportedOperator
from helpers.layer_gradients import layer_gradients, relative_error, torch_gradients

DIRECTIONS = {"forward": 1, "bidirectional": 2}


def _arrays(directions: int, *, steps: int, batch: int, size: int, hidden: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {
        "x": (steps, batch, size),
        "w": (directions, 4 * hidden, size),
        "r": (directions, 4 * hidden, hidden),
        "b": (directions, 8 * hidden),
        "h0": (directions, batch, hidden),
        "c0": (directions, batch, hidden),
    }
    return {name: (0.5 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def _reference(
    x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor, h0: torch.Tensor, c0: torch.Tensor
) -> torch.Tensor:
    """Hidden states of all steps [T, D, B, H], step by step from the definition."""
    outputs = []
    for d in range(w.shape[0]):
        h, c, states = h0[d], c0[d], []
        for t in range(x.shape[0])[:: -1 if d else 1]:
            i, o, f, g = (x[t] @ w[d].T + h @ r[d].T + b[d].reshape(2, -1).sum(0)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        outputs.append(torch.stack(states[:: -1 if d else 1]))
    return torch.stack(outputs, dim=1)


@settings(deadline=None, max_examples=8)
@given(
    direction=st.sampled_from(list(DIRECTIONS)),
    steps=st.integers(1, 4),
    batch=st.integers(1, 3),
    size=st.integers(1, 3),
    hidden=st.integers(1, 3),
)
def test_all_hidden_states(direction: str, steps: int, batch: int, size: int, hidden: int) -> None:
    arrays = _arrays(DIRECTIONS[direction], steps=steps, batch=batch, size=size, hidden=hidden)

    found = layer_gradients(
        lambda g: g.op("LSTM", "x", "w", "r", "b", "", "h0", "c0", outputs=3, hidden_size=hidden, direction=direction)[
            0
        ],
        arrays,
        batch_axes={"x": 1, "h0": 1, "c0": 1},
    )

    assert relative_error(found, torch_gradients(_reference, arrays)) < 1e-4


@pytest.mark.parametrize("output", [1, 2], ids=["hidden", "cell"])
def test_last_state_against_torch(output: int) -> None:
    """Only the last state is used, and the start is zero: what a classifier over a sequence does."""
    arrays = _arrays(1, steps=5, batch=3, size=2, hidden=4)
    arrays.pop("h0"), arrays.pop("c0")

    found = layer_gradients(
        lambda g: g.op("LSTM", "x", "w", "r", "b", outputs=3, hidden_size=4)[output], arrays, batch_axes={"x": 1}
    )

    def reference(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ours = {"weight_ih_l0": w[0], "weight_hh_l0": r[0], "bias_ih_l0": b[0, :16], "bias_hh_l0": b[0, 16:]}
        weights = {name: torch.cat([rows.chunk(4)[i] for i in (0, 2, 3, 1)]) for name, rows in ours.items()}
        _, last = torch.func.functional_call(torch.nn.LSTM(2, 4).double(), weights, (x,))
        answer: torch.Tensor = last[output - 1]
        return answer

    assert relative_error(found, torch_gradients(reference, arrays)) < 1e-4


def test_a_variant_that_torch_does_not_have_is_refused_by_name() -> None:
    arrays = {
        "x": np.zeros((2, 1, 2), np.float32),
        "w": np.zeros((1, 6, 2), np.float32),
        "r": np.zeros((1, 6, 2), np.float32),
    }

    with pytest.raises(UnsupportedOperator, match="GRU"):
        layer_gradients(lambda g: g.op("GRU", "x", "w", "r", outputs=2, hidden_size=2)[0], arrays, batch_axes={"x": 1})
