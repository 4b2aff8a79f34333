"""A small graph in the place of Cora: four rings of ten papers, each about one subject."""

from pathlib import Path
from typing import Any

import numpy as np


def save_rings(folder: Path) -> None:
    """Write it as the file that the data set is read from."""
    labels = np.repeat(np.arange(4), 10).astype(np.int8)
    ring = np.stack([np.arange(10), (np.arange(10) + 1) % 10], axis=1)
    words: dict[str, Any] = {
        "indptr": np.arange(41),
        "indices": np.repeat(np.arange(4), 10),
        "shape": np.array([40, 6]),
    }
    np.savez(folder / "cora.npz", labels=labels, edges=np.concatenate([ring + 10 * n for n in range(4)]), **words)
