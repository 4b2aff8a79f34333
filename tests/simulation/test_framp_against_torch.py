"""FRAMP on devices beside the same steps written with torch: global masks, alignment, prototypes, means by entry.

Without personalisation everybody's model is the one that the hypernetwork's bias holds, so that its part can be written
down without the hypernetwork.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from helpers.by_torch import (
    B1,
    B2,
    CLASSES,
    DATA,
    EPOCHS,
    HEAD,
    HEAD_BIAS,
    RATE,
    ROUNDS,
    W1,
    W2,
    Rows,
    Weights,
    begin,
    gradient,
    run,
    stepped,
)

SIZES = (1.0, 0.5, 0.25)
ALIGN = 0.3


def encoded(w: Weights, x: Tensor) -> Tensor:
    """What the classifier reads."""
    return functional.relu(functional.relu(x @ w[W1].T + w[B1]) @ w[W2].T + w[B2])


def kept_entries(w: Weights, share: float) -> Weights:
    """The largest of all matrices' entries together; biases are never masked."""
    sizes = torch.cat([w[name].abs().flatten() for name in (W1, W2, HEAD)])
    theta = sizes.topk(int(share * len(sizes))).values[-1]
    return {n: (v.abs() >= theta).double() if n in (W1, W2, HEAD) else torch.ones_like(v) for n, v in w.items()}


def class_means(w: Weights, data: Rows, *, least: int = 1) -> dict[int, Tensor]:
    """Of the classes with so many rows."""
    found = encoded(w, data[0])
    return {int(c): found[data[1] == c].mean(0) for c in data[1].unique() if int((data[1] == c).sum()) >= least}


def test_framp_without_personalisation(tmp_path: Path) -> None:
    w, common = begin(), dict[int, Tensor]()
    for _ in range(ROUNDS):
        changes, told = [], []
        for share, data in zip(SIZES, DATA.values(), strict=True):

            def loss(own: Weights, data: Rows, common: dict[int, Tensor] = common) -> Tensor:
                logits = encoded(own, data[0]) @ own[HEAD].T + own[HEAD_BIAS]
                away = [
                    ((mean - common[c]) ** 2).sum().sqrt() for c, mean in class_means(own, data).items() if c in common
                ]
                return functional.cross_entropy(logits, data[1]) + ALIGN * sum(away, torch.zeros(()))

            kept = kept_entries(w, share)
            start = {n: value * kept[n] for n, value in w.items()}
            own = start
            for _ in range(EPOCHS):
                own = stepped(own, {n: g * kept[n] for n, g in gradient(own, data, loss).items()}, RATE)
            changes.append({n: own[n] - start[n] for n in w})
            # The mean of one row is that row, which no device tells.
            told.append(class_means(own, data, least=2))
        for n, value in w.items():
            stacked = torch.stack([change[n] for change in changes])
            # Over at least two changes, so that one device alone does not overshoot.
            w[n] = value + stacked.sum(0) / (stacked != 0).sum(0).clamp(min=2)
        for c in range(CLASSES):
            own_means = [means[c] for means in told if c in means]
            common = {**common, c: torch.stack(own_means).mean(0)} if own_means else common

    settings = {"sizes": SIZES, "least": 0.0, "align": ALIGN, "align_by": "sum", "personal": False}
    method = run(tmp_path, "framp", {**settings, "describe": "classes"})
    found, prototypes = method.model_of("")[1], method.state().tensors["prototypes"]
    away = torch.cat([(torch.from_numpy(found[n]) - value).abs().flatten() for n, value in w.items()])
    # An entry as large as the last one that is kept may be kept on one side and not on the other, and moves others.
    assert float((away > 2e-5).double().mean()) < 0.02
    assert float(away.max()) < 1e-3
    for c, mean in common.items():
        np.testing.assert_allclose(prototypes[c], mean.numpy(), atol=1e-3)
