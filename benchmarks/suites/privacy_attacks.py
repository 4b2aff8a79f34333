"""Attacks on what leaves a device: who was in the training data, and what a sample looked like.

Membership: the loss of a sample under the model, which is lower for samples that it was trained on (Yeom et al., 2018);
the area under the ROC curve is 0.5 for an attacker who guesses. Inversion: a step on one sample gives the input of the
first linear layer away as the ratio of a weight's change to its bias' change (Phong et al., 2017); how alike it and the
sample are is their correlation.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwright.benchmarks.harness.suite import check, mean
from fedwright.device_runtime.train.portable import PortableTrainer
from fedwright.device_runtime.train.private import Lots, StepPrivacy
from fedwright.protocol.messages import Hiding
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build, initial_weights
from fedwright.server_runtime.rounds.privacy.accounting import Release, epsilon
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.simulation import datasets
from fedwright.simulation.datasets import Limit

MEMBERS, BATCH, STEPS = 150, 30, 400
CLIP = 1.0
# Of the noises, the last is the one that the promise is made for; the others show what less of it leaves to see.
NOISES = (4.0, 8.0, 16.0)
# One draw of 150 members has a standard error of 0.03.
DRAWS = 8
SPEC = ModelSpec("mlp", (1, 28, 28), 10)
Array = NDArray[Any]
Part = tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]


def attack_tables(seeds: Sequence[int]) -> Part:
    """How well each attack does on plain training and on training that hides samples."""
    draws = [100 * seed + draw for seed in seeds for draw in range(DRAWS)]
    kinds = (None, *NOISES)
    members = {noise: mean(membership(draw, noise) for draw in draws) for noise in kinds}
    inverted = {noise: mean(inversion(draw, noise) for draw in draws) for noise in kinds}
    rows = [
        {"noise": "none" if noise is None else noise, "epsilon": _epsilon(noise)}
        | {"membership: area under ROC": members[noise], "of any attack at most": most_area(noise)}
        | {"inversion: correlation": inverted[noise]}
        for noise in kinds
    ]
    found, hidden = members[None], members[NOISES[-1]]
    seen, unseen = inverted[None], max(inverted[noise] for noise in NOISES)
    most = f"noise {NOISES[-1]:g}"
    return {f"attacks on {MEMBERS} samples": rows}, [
        check("membership on plain training", found, ">= 0.6", holds=found >= 0.6),
        check(f"membership where samples are hidden ({most})", hidden, "<= 0.55", holds=hidden <= 0.55),
        *(_within(noise, members[noise]) for noise in NOISES),
        check("inversion on plain training", seen, ">= 0.99", holds=seen >= 0.99),
        check("inversion where samples are hidden, with the least noise", unseen, "<= 0.1", holds=unseen <= 0.1),
    ]


def _within(noise: float, found: float) -> dict[str, Any]:
    most = most_area(noise)
    name = f"membership with noise {noise:g}, beside what any attack could do"
    return check(name, found, f"<= {most:.3f}", holds=found <= most)


def most_area(noise: float | None) -> float:
    """The area that no attack passes: TPR <= min over ε of e^ε FPR + δ(ε), and its mirror (Kairouz et al., 2015)."""
    if noise is None:
        return 1.0
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant()
    step = dp_accounting.PoissonSampledDpEvent(BATCH / MEMBERS, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(step, STEPS)
    epsilons, false = np.linspace(0, 12, 241), np.linspace(0, 1, 2001)
    deltas = np.asarray([accountant.get_delta(one) for one in epsilons])
    up = (np.exp(epsilons)[:, None] * false + deltas[:, None]).min(axis=0)
    mirror = (1 - np.exp(-epsilons)[:, None] * (1 - deltas[:, None] - false)).min(axis=0)
    best = np.clip(np.minimum(up, mirror), 0, 1)
    return float(((best[1:] + best[:-1]) / 2 * np.diff(false)).sum())


def _epsilon(noise: float | None) -> float | str:
    return "infinite" if noise is None else epsilon([Release(noise, BATCH / MEMBERS, STEPS)], 1e-5)


def membership(seed: int, noise: float | None) -> float:
    """Area under the ROC curve of an attacker who takes samples of small loss for members."""
    data = datasets.load("fashion-mnist", limit=Limit(train=2 * MEMBERS, test=1))
    x, y = data.x_train[: 2 * MEMBERS], data.y_train[: 2 * MEMBERS]
    order = np.random.default_rng(seed).permutation(2 * MEMBERS)
    inside, outside = order[:MEMBERS], order[MEMBERS:]
    trainer = _trainer(seed, noise)
    lots = Lots(MEMBERS, BATCH)
    for _ in range(STEPS):
        rows, weights = lots.draw()
        batch = {"x": x[inside[rows]], "y": y[inside[rows]]} | ({} if noise is None else {"row_weight": weights})
        trainer.step(batch, learning_rate=0.1, seed=1)
    member, other = (_losses(trainer, x[rows], y[rows]) for rows in (inside, outside))
    return float(np.mean(member[:, None] < other[None, :]) + 0.5 * np.mean(member[:, None] == other[None, :]))


def inversion(seed: int, noise: float | None) -> float:
    """Correlation of a sample with what is read off the change that one step on it makes."""
    data = datasets.load("fashion-mnist", limit=Limit(train=200, test=1))
    row = int(np.random.default_rng(seed).integers(0, 200))
    trainer = _trainer(seed, noise)
    before = trainer.weights()
    batch = {"x": data.x_train[row : row + 1], "y": data.y_train[row : row + 1]}
    trainer.step(batch | ({} if noise is None else {"row_weight": np.ones(1, np.float32)}), learning_rate=1.0, seed=1)
    after = trainer.weights()
    weight = next(name for name, value in before.items() if value.ndim == 2)
    bias = weight.replace("weight", "bias")
    change, shift = after[weight] - before[weight], after[bias] - before[bias]
    unit = int(np.argmax(np.abs(shift)))
    guess = change[unit] / (shift[unit] if shift[unit] else 1.0)
    return abs(float(np.corrcoef(guess, data.x_train[row].reshape(-1))[0, 1]))


def plain_trainer(seed: int) -> PortableTrainer:
    """An mlp that nobody has trained."""
    return _trainer(seed, None)


def _trainer(seed: int, noise: float | None) -> PortableTrainer:
    module = zoo.create(SPEC, seed=seed)
    trainer = PortableTrainer(build(Structure(SPEC, private=noise is not None), module))
    trainer.load({name: np.asarray(value) for name, value in initial_weights(module).items()})
    if noise is not None:
        trainer.hide(StepPrivacy(Hiding(CLIP, noise), BATCH))
    return trainer


def _losses(trainer: PortableTrainer, x: Array, y: Array) -> Array:
    logits = trainer.predict({"x": x})[0].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y])
