"""What is read off a sum: each device's sample, by an attacker who gets one masked part, the sum, or the noisy sum.

Every device makes one step on one sample, which is the worst that can be summed. The attacker takes the change of every
unit of the first layer for a picture, and is given the one that is most like the sample (an upper bound on what it can
do): units that are active for one device alone carry its sample through any mean (Fowl et al., Robbing the Fed, 2022).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.benchmarks.harness.suite import check, mean
from fedwright.benchmarks.suites.privacy_attacks import Part, plain_trainer
from fedwright.protocol.secure.masks import add_stream, scale_of, to_mean, to_words
from fedwright.protocol.secure.noisy_words import noisy_scale, noisy_words
from fedwright.simulation import datasets
from fedwright.simulation.datasets import Limit

DEVICES, REACH, CLIP = 10, 8.0, 1.0
NOISES = (0.5, 1.0)
DRAWS = 4
# The most like of 128 pictures of noise, over 784 pixels, has a correlation of about 0.1.
MOST_ALIKE = 0.25
Array = NDArray[Any]


def sum_tables(seeds: Sequence[int]) -> Part:
    """The correlation of each sample with the most like picture."""
    draws = [100 * seed + draw for seed in seeds for draw in range(DRAWS)]
    rows = {
        "one device's change": mean(alike(draw, "open") for draw in draws),
        "one device's masked part": mean(alike(draw, "masked") for draw in draws),
        f"sum of {DEVICES} devices": mean(alike(draw, "sum") for draw in draws),
        **{f"sum with noise {n:g} of all devices": mean(alike(draw, "sum", n) for draw in draws) for n in NOISES},
    }
    table = [{"the attacker has": name, "correlation": value} for name, value in rows.items()]
    limits = {name: value for name, value in rows.items() if "masked" in name or "noise" in name}
    checks = [check("inversion of an open change", (seen := rows["one device's change"]), ">= 0.9", holds=seen >= 0.9)]
    limit = f"<= {MOST_ALIKE}"
    checks += [check(f"inversion of {name}", value, limit, holds=value <= MOST_ALIKE) for name, value in limits.items()]
    return {"one sample of each device, read off a sum": table}, checks


def alike(seed: int, what: str, noise: float | None = None) -> float:
    """Mean over devices of how alike its sample and the most like picture are."""
    samples, changes, weight = _changes(seed)
    if what == "sum":
        seen = [_summed(changes, noise, seed)] * len(changes)
    else:
        seen = [_masked(change, seed) if what == "masked" else change for change in changes]
    return float(np.mean([_most_alike(one[weight], x) for one, x in zip(seen, samples, strict=True)]))


def _changes(seed: int) -> tuple[list[Array], list[Array], slice]:
    """Samples, the row that each device would put into a sum, and where the first layer's weights are in it."""
    data = datasets.load("fashion-mnist", limit=Limit(train=200, test=1))
    chosen = np.random.default_rng(seed).choice(200, DEVICES, replace=False)
    trainer = plain_trainer(seed)
    before = trainer.weights()
    names = sorted(before)
    first = next(name for name, value in before.items() if value.ndim == 2)
    start = sum(before[name].size for name in names[: names.index(first)])
    rows = []
    for row in chosen:
        trainer.load(before)
        trainer.step({"x": data.x_train[row : row + 1], "y": data.y_train[row : row + 1]}, learning_rate=1.0, seed=1)
        after = trainer.weights()
        rows.append(np.concatenate([(after[name] - before[name]).reshape(-1) for name in names]).astype(np.float32))
    samples = [data.x_train[row].reshape(-1) for row in chosen]
    return samples, rows, slice(start, start + before[first].size)


def _summed(changes: Sequence[Array], noise: float | None, seed: int) -> Array:
    members = len(changes)
    if noise is None:
        scale = scale_of(members, REACH)
        words = [to_words(change, 1.0, devices=members, reach=REACH) for change in changes]
    else:
        made = noisy_scale(members, len(changes[0]), clip=CLIP, multiplier=noise)
        scale, keys = made.scale, [bytes([seed % 256, place]) * 16 for place in range(members)]
        words = [noisy_words(one, made, clip=CLIP, seed=key) for one, key in zip(changes, keys, strict=True)]
    return to_mean(np.sum(words, axis=0, dtype=np.uint32), float(members), devices=members, scale=scale)


def _masked(change: Array, seed: int) -> Array:
    """What a server gets of one device: its numbers under the stream of a key that it does not have."""
    words = to_words(change, 1.0, devices=DEVICES, reach=REACH)
    add_stream(words, bytes([seed % 256]) * 32)
    return words.view(np.int32).astype(np.float64)


def _most_alike(weights: Array, sample: Array) -> float:
    pictures = weights.reshape(-1, len(sample))
    pictures = pictures - pictures.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(pictures, axis=1)
    away = sample - sample.mean()
    found = np.abs(pictures @ away) / (np.maximum(lengths, 1e-30) * np.linalg.norm(away))
    return float(found[lengths > 0].max(initial=0.0))
