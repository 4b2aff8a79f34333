"""Who takes part in a round, and the seeds that everything random in it is drawn from."""

import hashlib
from collections.abc import Sequence

import numpy as np


def derive_seed(seed: int, *names: str | int) -> int:
    """A seed for one purpose, made from the run's seed and the purpose's names; stable across machines."""
    text = "\0".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def sample(devices: Sequence[str], *, count: int, seed: int, round_number: int) -> list[str]:
    """`count` devices drawn without replacement (all when there are fewer), in the order of their ids."""
    ordered = sorted(devices)
    if count >= len(ordered):
        return ordered
    generator = np.random.default_rng(derive_seed(seed, "sample", round_number))
    return sorted(ordered[i] for i in generator.choice(len(ordered), size=count, replace=False))
