"""Spectra of a machine's vibration: healthy, a worn bearing, a loose belt, an unbalanced shaft."""

import numpy as np

LINES = 32
# Where each fault hums, in lines of the spectrum.
HUMS = [(), (9, 18, 27), (4, 5, 6), (2,)]


def load():
    """x [n, lines] and the fault as y [n]."""
    rng = np.random.default_rng(0)
    y = np.arange(1200) % len(HUMS)
    x = rng.gamma(2.0, 0.5, (len(y), LINES))
    for row, fault in enumerate(y):
        for line in HUMS[fault]:
            x[row, line] += rng.gamma(4.0, 0.7)
    # Around 1, as networks like it.
    return (x / 3).astype(np.float32), y
