"""Windows of a wrist's acceleration in three axes: sitting, walking, climbing stairs, running."""

import numpy as np

LENGTH, PER_SECOND = 64, 32
# Steps per second, how hard they are, and how much the arm leans.
KINDS = {"sit": (0.0, 0.0, 0.9), "walk": (1.8, 0.6, 0.3), "stairs": (1.5, 0.9, 0.6), "run": (2.8, 1.6, 0.1)}


def load():
    """x [n, 3, time] in g and the kind of movement as y [n]."""
    rng = np.random.default_rng(0)
    y = np.arange(1200) % len(KINDS)
    pace, force, lean = (np.array(values)[y] for values in zip(*KINDS.values(), strict=True))
    seconds = np.arange(LENGTH) / PER_SECOND
    pace = pace * rng.normal(1, 0.1, len(y))
    angle = 2 * np.pi * (pace[:, None] * seconds + rng.random(len(y))[:, None])
    x = np.stack(
        [force[:, None] * np.sin(angle), force[:, None] * np.cos(2 * angle), lean[:, None] + 0 * angle], axis=1
    )
    x = x + rng.normal(0, 0.3, x.shape)
    return x.astype(np.float32), y
