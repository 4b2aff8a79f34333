"""Models cut into blocks, and models put together from blocks of others with stitches between.

A stitched model has a name that says what it is made of, `stitched:cnn1#0|cnn3#2|cnn3#8`: block 0 of cnn1, then blocks
2 and 8 of cnn3. `dense:` has dense stitches and, where the last piece is `classes`, a linear layer for the classes.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.pfedclub.stitching import (
    BlockShape,
    Shape,
    fitting,
    is_map,
    pooled_places,
    stitch_kind,
)
from fedwright.server_runtime.zoo.base import ZooModel
from fedwright.server_runtime.zoo.graph_blocks import NORMS, graph_units

STITCHED, DENSE, CLASSES = "stitched:", "dense:", "classes"
BETWEEN, NUMBER = "|", "#"
# What layers of torch raise for an input that they cannot take; attention asserts its width.
MISFITS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError)

_POINTWISE: dict[int, type[nn.Conv1d] | type[nn.Conv2d]] = {1: nn.Conv1d, 2: nn.Conv2d}


@dataclass(frozen=True)
class Cut:
    """A model in blocks that follow one another; one that cannot be cut is a single block, and `why` says why."""

    blocks: tuple[nn.Module, ...]
    parts: tuple[BlockShape, ...]
    why: str = ""


def cut(module: nn.Module, shape: Shape) -> Cut:
    """The blocks of a module: those of a zoo model, the units of a sequential one, else what its graph shows."""
    still = copy.deepcopy(module).eval()
    try:
        blocks = _units(still)
        states = _states(blocks, still, shape)
        found = tuple(_units(module))
    except ConfigError as err:
        part = BlockShape(shape, (), flat=False, head=True, parameters=_size(module))
        return Cut((module,), (part,), str(err))
    parts = tuple(
        _shape_of(block, x, y, head=block is blocks[-1])
        for block, x, y in zip(blocks, states[:-1], states[1:], strict=True)
    )
    return Cut(found, parts)


def _shape_of(block: nn.Module, x: Tensor, y: Tensor, *, head: bool) -> BlockShape:
    """A block that makes y of x."""
    return BlockShape(tuple(x.shape[1:]), tuple(y.shape[1:]), _takes_vectors(block, x, y), head, _size(block))


def _states(blocks: Sequence[nn.Module], whole: nn.Module, shape: Shape) -> list[Tensor]:
    """What enters the first block and leaves each; ConfigError where the blocks in a row are not the whole."""
    states = [torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))]
    with torch.no_grad():
        try:
            for block in blocks:
                states.append(block.forward(states[-1]))
            same = torch.allclose(states[-1], whole(states[0]), atol=1e-4)
        except MISFITS as err:
            raise ConfigError("its layers do not work one after another") from err
    if not same:
        raise ConfigError("its forward pass does more than its layers one after another")
    return states


def _units(module: nn.Module) -> list[nn.Module]:
    """The blocks of a module, at least two; ConfigError says why there are none."""
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        raise ConfigError("recurrent models are kept whole")
    units = _rows_of_layers(module)
    if len(units) > 1:
        return units
    if isinstance(module, ZooModel):
        raise ConfigError("it is one block")
    # In evaluation mode: what is traced keeps its mode, and a teacher only ever answers.
    return graph_units(module.eval())


def _rows_of_layers(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, ZooModel):
        return [block for _, block in module.blocks()]
    return _sequential_units(module) if isinstance(module, nn.Sequential) else []


def _sequential_units(module: nn.Sequential) -> list[nn.Module]:
    """One unit per layer with weights, with what follows it up to the next; a Flatten opens the unit of its layer."""
    units: list[list[nn.Module]] = []
    opened = False
    for layer in _layers(module):
        weighs = any(True for _ in layer.parameters()) and not isinstance(layer, NORMS)
        if not units or (weighs and not opened) or isinstance(layer, nn.Flatten):
            units.append([])
        units[-1].append(layer)
        # Layers before the first weights, and a Flatten, wait for the layer they belong to.
        opened = not weighs and not any(_size(other) for other in units[-1])
    return [unit[0] if len(unit) == 1 else nn.Sequential(*unit) for unit in units]


def _layers(module: nn.Sequential) -> list[nn.Module]:
    return [inner for layer in module for inner in (_layers(layer) if isinstance(layer, nn.Sequential) else [layer])]


def _size(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def _takes_vectors(block: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Whether a block makes of a flat vector what it makes of x: it flattens it anyway, or multiplies it."""
    try:
        with torch.no_grad():
            # Not by calling the block: a traced one would print what it raises.
            made = block.forward(x.flatten(1))
    except MISFITS:
        return False
    return made.shape == y.shape and torch.allclose(made, y, atol=1e-4)


class MapFit(nn.Module):
    """A map at another size, by adaptive average pooling written as products with constant matrices."""

    def __init__(self, source: Shape, places: Shape) -> None:
        super().__init__()
        self.axes = tuple(
            axis for axis, (now, wanted) in enumerate(zip(source[1:], places, strict=True)) if now != wanted
        )
        for axis in self.axes:
            matrix = torch.from_numpy(fitting(source[1 + axis], places[axis]))
            self.register_buffer(f"matrix{axis}", matrix if axis < len(places) - 1 else matrix.T, persistent=False)
        self.last = len(places) - 1

    def forward(self, x: Tensor) -> Tensor:
        """The fitted map."""
        for axis in self.axes:
            matrix = getattr(self, f"matrix{axis}")
            x = torch.matmul(x, matrix) if axis == self.last else torch.matmul(matrix, x)
        return x


class Shaped(nn.Module):
    """A flat vector as a map."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """The map."""
        return x.reshape(-1, *self.shape)


def make_stitch(gives: Shape, part: BlockShape, *, dense: bool = False) -> nn.Module:
    """The layers between a shape and a block."""
    kind = stitch_kind(gives, part, dense=dense)
    if kind is None:
        raise ConfigError(f"a block that takes {part.takes} cannot follow one that gives {gives}; keep another order")
    if kind == "none":
        return nn.Identity()
    if kind == "map":
        pointwise = _POINTWISE[len(gives) - 1]
        return nn.Sequential(MapFit(gives, part.takes[1:]), pointwise(gives[0], part.takes[0], 1), nn.ReLU())
    wanted = math.prod(part.takes)
    if kind == "pooled":
        places = pooled_places(gives, part)
        inputs = gives[0] * math.prod(places)
        return nn.Sequential(MapFit(gives, places), nn.Flatten(), nn.Linear(inputs, wanted), nn.ReLU())
    layers = [nn.Flatten(), nn.Linear(math.prod(gives), wanted), nn.ReLU()]
    return nn.Sequential(*layers, Shaped(part.takes)) if is_map(part.takes) else nn.Sequential(*layers)


class Stitched(nn.Module):
    """Blocks one after another, each behind its stitch."""

    def __init__(self, blocks: Sequence[nn.Module], stitches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.stitches = nn.ModuleList(stitches)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        for stitch, block in zip(self.stitches, self.blocks, strict=True):
            x = block(stitch(x))
        return x


def assemble(
    blocks: Sequence[nn.Module],
    parts: Sequence[BlockShape],
    shape: Shape,
    *,
    dense: bool = False,
    shared: bool = False,
) -> Stitched:
    """Copies of blocks put together; stitches are drawn anew.

    shared: blocks without running statistics are taken as they are, by those who change nothing in them.
    """
    gives = [shape, *(part.gives for part in parts[:-1])]
    stitches = [make_stitch(before, part, dense=dense) for before, part in zip(gives, parts, strict=True)]
    own: list[nn.Module] = []
    for block in blocks:
        # One that stands twice has its weights under two names.
        plain = shared and block not in own and not any(True for _ in block.buffers())
        own.append(block if plain else copy.deepcopy(block))
    return Stitched(own, stitches)


def classes_block(gives: Shape, classes: int) -> tuple[nn.Module, BlockShape]:
    """A new linear layer for the classes, over whatever came before."""
    width = math.prod(gives)
    layer = nn.Sequential(nn.Flatten(), nn.Linear(width, classes))
    return layer, BlockShape((width,), (classes,), flat=True, head=True, parameters=(width + 1) * classes)


def spell(pieces: Sequence[tuple[str, int]], *, dense: bool = False) -> str:
    """The name of a stitched model; a piece is a model's name and the number of its block (`classes`, any number)."""
    words = [model if model == CLASSES else f"{model}{NUMBER}{index}" for model, index in pieces]
    return (DENSE if dense else STITCHED) + BETWEEN.join(words)


def create(name: str, shape: Shape, classes: int, make: Callable[[str], nn.Module]) -> Stitched:
    """The model that a name spells; `make` gives a source model by its name."""
    dense = name.startswith(DENSE)
    cuts: dict[str, Cut] = {}
    blocks: list[nn.Module] = []
    parts: list[BlockShape] = []
    for word in name.partition(":")[2].split(BETWEEN):
        if word == CLASSES and parts:
            block, part = classes_block(parts[-1].gives, classes)
        else:
            block, part = _piece(word, name, shape, cuts, make)
        blocks.append(block)
        parts.append(part)
    return assemble(blocks, parts, shape, dense=dense)


def _piece(
    word: str, name: str, shape: Shape, cuts: dict[str, Cut], make: Callable[[str], nn.Module]
) -> tuple[nn.Module, BlockShape]:
    model, mark, number = word.rpartition(NUMBER)
    if not mark or not number.isdigit():
        raise ConfigError(f"model {name!r} has the piece {word!r}; a piece is a model's name, # and a number")
    if model not in cuts:
        cuts[model] = cut(make(model), shape)
    found = cuts[model]
    if int(number) >= len(found.blocks):
        raise ConfigError(f"model {name!r} asks for block {number} of {model}, which has {len(found.blocks)}")
    return found.blocks[int(number)], found.parts[int(number)]
