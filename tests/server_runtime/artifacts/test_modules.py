"""Torch modules as they are exported, compared with torch: no module needs any annotation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.spec import ModelSpec, Structure
from helpers.graphs import Stepper, graph_gradients, relative_error, torch_gradients

CLASSES = 3


class Attention(nn.Module):
    """nn.MultiheadAttention over a sequence, then a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))
        return answer


class Causal(nn.Module):
    """Attention by hand with einsum and a mask, logits at every place."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, CLASSES)
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.einsum("bik,bjk->bij", q, k) / 8**0.5
        weights = scores.masked_fill(self.mask, float("-inf")).softmax(-1)
        answer: torch.Tensor = self.head(torch.einsum("bij,bjk->bik", weights, v))
        return answer


class Positions(nn.Module):
    """Token embeddings plus places from a buffer that is not saved, and a saved one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 8)
        self.register_buffer("places", torch.linspace(0, 1, 5 * 8).reshape(5, 8), persistent=False)
        self.register_buffer("shift", torch.linspace(1, 2, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head((self.embed(x) + self.places).mul(self.shift).amax(1))
        return answer


class Graph(nn.Module):
    """One round of messages over fixed edges with index_add, as graph libraries write it."""

    edges: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(5, 8), nn.Linear(8, CLASSES)
        self.register_buffer("edges", torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        sources, targets = self.edges
        answer: torch.Tensor = self.head(torch.relu(h.index_add(1, targets, h[:, sources]).flatten(0, 0).mean(1)))
        return answer


class Cell(nn.Module):
    """A recurrent cell written out step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.keep = nn.Linear(8, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.size(0), 6, dtype=x.dtype)
        for step in range(x.size(1)):
            state = torch.tanh(self.read(x[:, step]) + self.keep(state))
        answer: torch.Tensor = self.head(state)
        return answer


class Mixed(nn.Module):
    """Activations, padding, cropping and selections seen in the wild."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 12), nn.Linear(12, CLASSES)
        self.slope = nn.PReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.pad(self.one(x), (1, 2), value=0.3)[:, :, 1:-2]
        h = functional.silu(h) + functional.gelu(h) + functional.hardswish(h) + functional.relu6(h)
        h = self.slope(h) + functional.softplus(h) + torch.clamp(h, -0.5, 0.5) + functional.elu(h)
        h = torch.maximum(h, h.flip(1)) - torch.minimum(h[..., ::2].repeat_interleave(2, -1), h)
        h = functional.normalize(h, dim=-1) + torch.where(h > 0, h, 0.1 * h)
        answer: torch.Tensor = self.two(torch.cat([h[:, :2], h[:, 3:]], 1).amax(1) + h.std(1) + h.pow(2).sum(1).sqrt())
        return answer


def _encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first, activation="gelu"
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(40, CLASSES))


MODULES = {
    "attention": (Attention, "float"),
    "causal attention": (Causal, "float"),
    "encoder": (lambda: _encoder(False), "float"),
    "pre-norm encoder": (lambda: _encoder(True), "float"),
    "positions": (Positions, "tokens"),
    "cell": (Cell, "float"),
    "mixed": (Mixed, "float"),
    "gru-like gates": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.GLU(), nn.Flatten(), nn.Linear(20, CLASSES)),
        "float",
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_gradients_equal_torch(name: str) -> None:
    torch.manual_seed(11)
    make, kind = MODULES[name]
    module = make()
    rng = np.random.default_rng(12)
    x = rng.integers(0, 6, (4, 5)) if kind == "tokens" else rng.standard_normal((4, 5, 8)).astype(np.float32)
    per_place = name == "causal attention"
    batch = {"x": x, "y": rng.integers(0, CLASSES, (4, 5) if per_place else 4)}

    loss, found = graph_gradients(module, batch, CLASSES)

    wanted_loss, wanted = torch_gradients(module, batch)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert relative_error(found, wanted) < 1e-4


def test_messages_along_fixed_edges() -> None:
    torch.manual_seed(13)
    rng = np.random.default_rng(14)
    batch = {"x": rng.standard_normal((4, 2, 5)).astype(np.float32), "y": rng.integers(0, CLASSES, 4)}
    module = Graph()

    _, found = graph_gradients(module, batch, CLASSES)

    assert relative_error(found, torch_gradients(module, batch)[1]) < 1e-4


def test_a_users_function_needs_no_annotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_train.py").write_text(
        "from torch import nn\n"
        "def make_model(input_shape, classes):\n"
        "    return nn.Sequential(nn.Linear(input_shape[0], 5), nn.GELU(), nn.Linear(5, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = ModelSpec("python:mine_to_train:make_model", (6,), CLASSES)

    artifact = Builder().build(Structure(spec))

    weights = {s.name: np.full(s.shape, 0.1, np.float32) for s in artifact.manifest.slots}
    stepper = Stepper(artifact, weights)
    batch = {"x": np.ones((2, 6), np.float32), "y": np.array([0, 0])}
    losses = [float(stepper.step(batch)["loss"]) for _ in range(5)]
    assert losses[-1] < losses[0]
