"""A graph convolutional network of 4 layers over an edge list, and a linear head."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.base import Layers, ModelEntry, Width, ZooModel, axis

DEPTH = 4


class Gcn(ZooModel):
    """`forward(x, edges)` is `head(encoder(x, edges))`; x [nodes, features], edges [m, 2] int64, each edge once."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:  # type: ignore[override]
        """Logits of every node."""
        return self.head(self.encoder(x, edges))  # type: ignore[no-any-return]


class GraphConv(nn.Module):
    """ReLU(D^-1/2 (A + I) D^-1/2 x W' + b), with A from an undirected edge list and D the degrees of A + I."""

    def __init__(self, make: Layers, source: Width, target: Width) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(make.size(target), make.size(source)))
        self.bias = nn.Parameter(torch.zeros(make.size(target)))
        nn.init.xavier_uniform_(self.weight)
        make.tag(self, weight=(axis(target), axis(source)), bias=(axis(target),))

    def forward(self, x: Tensor, ends: tuple[Tensor, Tensor], scale: Tensor) -> Tensor:
        """ends: both directions of each edge (from, to); scale: D^-1/2 as a column."""
        source, target = ends
        # The weights come first because they make the rows that travel along edges shorter.
        scaled = functional.linear(x, self.weight) * scale
        received = scaled.index_select(0, source)
        total = scaled.scatter_add(0, target.unsqueeze(1).expand(-1, received.shape[1]), received)
        return torch.relu(total * scale + self.bias)


class GraphEncoder(nn.Module):
    """Graph convolutions one after another."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Embeddings of every node."""
        one, other = edges[:, 0], edges[:, 1]
        ends = torch.cat([one, other]), torch.cat([other, one])
        ones = torch.ones_like(x[:, :1])
        degree = ones.scatter_add(0, ends[1].unsqueeze(1), ones.index_select(0, ends[0]))
        scale = degree**-0.5
        for layer in self.children():
            x = layer(x, ends, scale)
        return x


def _gcn(spec: ModelSpec, make: Layers) -> ZooModel:
    if len(spec.input_shape) != 1:
        raise ConfigError(
            f"model {spec.model} reads nodes of shape (features,) but the input shape is {spec.input_shape}"
        )
    model = Gcn()
    model.encoder = GraphEncoder()
    source: Width = spec.input_shape[0]
    for number in range(1, DEPTH + 1):
        model.encoder.add_module(f"conv{number}", GraphConv(make, source, f"conv{number}"))
        source = f"conv{number}"
    model.head = make.linear(source, spec.classes, adapt=False)
    return model


ENTRIES = (
    ModelEntry(
        "gcn4",
        "four graph convolutions over an edge list, for node classification",
        "graph",
        {f"conv{number}": 64 for number in range(1, DEPTH + 1)},
        (1433,),
        7,
        _gcn,
    ),
)
