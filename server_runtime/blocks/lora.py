"""Low-rank adapters as tensors, and the pairing of devices that train one adapter in turn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DOWN, UP = "lora_down", "lora_up"


def merge(weights: Mapping[str, Array], scale: float = 1.0) -> dict[str, Array]:
    """The same model without adapters: W + scale · up · down, gate by gate where a matrix holds several."""
    merged = {name: value for name, value in weights.items() if not name.endswith((DOWN, UP))}
    for name, down in weights.items():
        if name.endswith(DOWN):
            base, up = adapted_matrix(name), weights[name.removesuffix(DOWN) + UP]
            added = np.float32(scale) * _product(up, down)
            merged[base] = merged[base] + added.reshape(merged[base].shape)
    return merged


def adapted_matrix(name: str) -> str:
    """The matrix that a factor changes: `fc.weight` for `fc.lora_up`, `lstm.weight_ih_l0` for `lstm.ih_l0_lora_up`.

    Attention has `in_proj_weight`.
    """
    layer, dot, last = name.rpartition(".")
    matrix = last.removesuffix(DOWN).removesuffix(UP).rstrip("_")
    if matrix == "in_proj":
        return f"{layer}{dot}in_proj_weight"
    return f"{layer}{dot}weight" + (f"_{matrix}" if matrix else "")


def _product(up: Array, down: Array) -> Array:
    """up_g down_g below one another, up: [gates · out, rank], down: [gates · rank, in]."""
    (outputs, rank), (rows, inputs) = up.shape, down.shape
    gates = rows // rank
    made: Array = up.reshape(gates, outputs // gates, rank) @ down.reshape(gates, rank, inputs)
    return made.reshape(outputs, inputs)


def head_spreads(names: Sequence[str], hidden: int) -> dict[str, float]:
    """How large a hypernetwork's head weights begin: 0 for second factors, a tenth of torch's default for first ones.

    With both at zero no gradient would flow; with neither the base model would be disturbed from the start.
    """
    spread = 0.1 / np.sqrt(3.0 * hidden)
    return {name: float(spread) if name.endswith(DOWN) else 0.0 for name in names}


@dataclass(frozen=True)
class Pair:
    """Devices that take turns with one adapter, and the classes whose samples they use."""

    turns: tuple[str, ...]
    classes: tuple[int, ...]


def pair_up(owned: Mapping[str, Sequence[int]], exchanges: int, rng: np.random.Generator) -> list[Pair]:
    """Pairs of shuffled devices; an odd one is left over. Each pair uses half of the union of its classes.

    A device without any of these classes has no turn; a pair of which neither has any is dropped.
    """
    order = [sorted(owned)[place] for place in rng.permutation(len(owned))]
    pairs = []
    for first, second in zip(order[::2], order[1::2], strict=False):
        union = sorted({*owned[first], *owned[second]})
        drawn = sorted(rng.choice(union, max(1, len(union) // 2), replace=False).tolist()) if union else []
        turns = take_turns((first, second), owned, drawn, exchanges)
        if turns:
            pairs.append(Pair(turns, tuple(drawn)))
    return pairs


def take_turns(
    pair: tuple[str, str], owned: Mapping[str, Sequence[int]], drawn: Sequence[int], exchanges: int
) -> tuple[str, ...]:
    """Who has the adapter when: first and second in turn, without those that have no sample of the drawn classes."""
    able = [device for device in pair if set(owned[device]) & set(drawn)]
    return tuple(able) * exchanges


def round_values(*, selected: int, pairs: int, exchanges: int, classes: int, adapter: int) -> int:
    """Numbers on the wire in a round: 2 M |r| + (2 M + 4 E M_pair) |ρ|; without pairs M |r| + 2 M |ρ|."""
    indicators = 2 * selected if pairs else selected
    return indicators * classes + (2 * selected + 4 * exchanges * pairs) * adapter


def flatten(shapes: Mapping[str, tuple[int, ...]], adapter: Mapping[str, Array]) -> Array:
    """All tensors that `shapes` names as one vector."""
    return np.concatenate([adapter[name].reshape(-1) for name in shapes]).astype(np.float32)


def unflatten(shapes: Mapping[str, tuple[int, ...]], flat: Array) -> dict[str, Array]:
    """The tensors that `flatten` was given."""
    found, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape)
        found[name] = flat[start:end].reshape(shape)
    return found
