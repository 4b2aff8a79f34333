"""A CNN with a classifier after each of its three blocks, for methods that cut depth as well as width (ScaleFL)."""

from torch import Tensor, nn

from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.base import Layers, ModelEntry, Width, ZooModel, image_shape
from fedwright.server_runtime.zoo.small import norm_unit

EXITS = "exits"


class ExitsEncoder(nn.Module):
    """The pooled map after every block, shallow to deep."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """One embedding per exit."""
        pooled: list[Tensor] = []
        for block in self.children():
            x = block(x)
            pooled.append(x.mean(dim=(2, 3)))
        return tuple(pooled)


class ExitsHead(nn.Module):
    """One linear classifier per exit."""

    def forward(self, embeddings: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Logits of every exit, shallow to deep."""
        return tuple(exit_(x) for exit_, x in zip(self.children(), embeddings, strict=True))


class ExitsCnn(ZooModel):
    """`forward(x)` gives the logits of every exit; a model of depth 1 has one exit and a tuple of one."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Logits of every exit, shallow to deep."""
        return self.head(self.encoder(x))  # type: ignore[no-any-return]


def _exits(spec: ModelSpec, make: Layers) -> ZooModel:
    source: Width = image_shape(spec, 8)[0]
    encoder, head = ExitsEncoder(), ExitsHead()
    for number in range(1, make.size(EXITS) + 1):
        name = f"conv{number}"
        encoder.add_module(name, norm_unit(make, source, name, pool=True))
        head.add_module(f"exit{number}", make.linear(name, spec.classes, adapt=False))
        source = name
    model = ExitsCnn()
    model.encoder = encoder
    model.head = head
    return model


ENTRIES = (
    ModelEntry(
        "cnn-exits",
        "three normalised convolutions with a classifier after each; `exits` is the depth",
        "image",
        {"conv1": 32, "conv2": 64, "conv3": 128, EXITS: 3},
        (1, 28, 28),
        10,
        _exits,
        uncut=(EXITS,),
    ),
)
