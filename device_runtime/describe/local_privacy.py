"""What a device tells of its data under local differential privacy: once, with noise, and the same ever after.

Neighbours are data sets of as many samples of which one is another; how many there are is told as it is. One budget ε
is shared equally by the facts that are told, each over whole numbers, whose noise is drawn exactly:

    class counts       one sample moves two of them by 1:            + Laplace_Z(2 / ε_c)
    spread of pixels   of each image at most 1, mean over m:         + Laplace_Z in steps of 1 / (64 m)
    descriptor         features of each sample clipped to CLIP:      + Gauss_Z, (ε_d, DELTA) by zero-concentration

Counts below what noise makes of nothing are told as 0, and which classes there are is what is left. Names of classes,
counts of words and descriptors of whole numbers are told to nobody.
"""

import logging
import math
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.describe.descriptor import BATCH, SIZE, drawn_rows, features
from fedwright.protocol.crypto.discrete_gaussian import MOST_VARIANCE, DiscreteGaussian, DiscreteLaplace
from fedwright.protocol.data_summary import DataSummary
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import write_private
from fedwright.protocol.support.unreadable import UNREADABLE

log = logging.getLogger(__name__)

FACTS = ("class_counts", "pixel_std", "descriptor")
DELTA = 1e-6
# Longest row of features of one sample; those of images are shorter.
CLIP = 4.0
# Steps in which the mean spread of pixels is told, for each sample.
STEPS = 64
# An absent class is told of with this chance.
ABSENT_CHANCE = 0.05
TOLD = "told-privately"


class Told(msgspec.Struct, frozen=True):
    """What was told, and with which budget."""

    epsilon: float
    summary: DataSummary


def told_once(data: LocalData, epsilon: float, folder: Path, *, seed: bytes | None = None) -> DataSummary:
    """What is told of these data, made at the first time; other data later change but the number of samples."""
    file, plain = folder / TOLD, data.summary()
    try:
        kept = msgspec.msgpack.decode(file.read_bytes(), type=Told)
    except FileNotFoundError:
        kept = Told(epsilon, private_summary(data, epsilon, seed=seed))
        folder.mkdir(parents=True, exist_ok=True)
        write_private(file, msgspec.msgpack.encode(kept))
    except UNREADABLE as err:
        # A second draw would tell more than the budget.
        raise ConfigError(f"{file} cannot be read ({err}); put a copy back, or remove it to tell as much anew") from err
    if kept.epsilon > epsilon:
        log.warning(
            "what this device tells of its data was told with tells_epsilon %g, before it was less", kept.epsilon
        )
    return structs.replace(kept.summary, samples=plain.samples, holdout=plain.holdout)


def private_summary(data: LocalData, epsilon: float, *, seed: bytes | None = None) -> DataSummary:
    """A summary with noise; seed makes it one that a test knows."""
    plain = data.summary()
    there = [fact for fact in FACTS if getattr(plain, fact) is not None and plain.samples]
    share = epsilon / max(1, len(there))
    counts = _counts(plain, share, seed) if "class_counts" in there else None
    return structs.replace(
        plain,
        class_counts=None if plain.class_names else counts,
        class_names=None if plain.class_names is None else [],
        score_counts=None,
        pixel_std=_spread(data, share, seed) if "pixel_std" in there else None,
        descriptor=_descriptor(data, share, seed) if "descriptor" in there else None,
        number_descriptor=None,
    )


def _counts(plain: DataSummary, epsilon: float, seed: bytes | None) -> list[int]:
    scale = math.ceil(2 / epsilon)
    counts = np.zeros(plain.classes, np.int64)
    own = np.asarray(plain.class_counts, np.int64)[: plain.classes]
    counts[: len(own)] = own
    noisy = counts + DiscreteLaplace(scale, seed).draw(len(counts))
    found = np.where(noisy > scale * math.log(1 / ABSENT_CHANCE), noisy, 0)
    # A device that told of no class at all would be left out; that it has samples everybody knows.
    found[int(noisy.argmax())] = max(1, int(noisy.max()))
    return [int(count) for count in found]


def _spread(data: LocalData, epsilon: float, seed: bytes | None) -> float:
    rows = drawn_rows(len(data.x))
    images = np.asarray(data.x[rows], np.float32).reshape(len(rows), -1)
    spread = np.clip(np.nan_to_num(images.std(axis=1, dtype=np.float64)), 0, 1)
    total = int(np.rint(STEPS * spread).sum())
    noisy = total + int(DiscreteLaplace(math.ceil(STEPS / epsilon), seed).draw(1)[0])
    return min(1.0, max(0.0, noisy / (STEPS * len(rows))))


def _descriptor(data: LocalData, epsilon: float, seed: bytes | None) -> list[float]:
    rows, total = drawn_rows(len(data.x)), np.zeros(SIZE)
    for start in range(0, len(rows), BATCH):
        found = features(np.asarray(data.x[rows[start : start + BATCH]])).astype(np.float64)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        total += np.nan_to_num(found * np.minimum(1, CLIP / np.maximum(lengths, 1e-12))).sum(axis=0)
    # ε = ρ + 2 sqrt(ρ log(1 / δ)) and ρ = Δ² / (2 σ²) (Bun and Steinke, 2016).
    away = math.log(1 / DELTA)
    rho = (math.sqrt(away + epsilon) - math.sqrt(away)) ** 2
    reach = math.sqrt(2 * rho * (MOST_VARIANCE - 1))
    steps = (reach - math.sqrt(SIZE)) / (2 * CLIP)
    if steps <= 0:
        raise ConfigError(
            "tells_epsilon is so low that nothing would be left of a descriptor; take descriptor from tells"
        )
    noise = DiscreteGaussian(math.ceil(reach**2 / (2 * rho)), seed).draw(SIZE)
    return [float(value) for value in (np.rint(total * steps) + noise) / (steps * len(rows))]
