"""Small image folders: every class has a shape of its own, so that a few rounds tell them apart."""

from pathlib import Path

import numpy as np

SIZE = 8


def draw(name: str, count: int, *, seed: int) -> np.ndarray:
    """Grey images [count, SIZE, SIZE] of one class: a bright bar at a place that its first letter chooses."""
    rng = np.random.default_rng([seed, *name.encode()])
    images = rng.integers(0, 60, (count, SIZE, SIZE)).astype(np.uint8)
    place = ord(name[0]) % SIZE
    images[:, place, :] = 230
    return images


def write_folder(root: Path, classes: dict[str, int], *, seed: int = 0) -> Path:
    """A folder per class with that many images."""
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for number, image in enumerate(draw(name, count, seed=seed)):
            head = f"P5 {SIZE} {SIZE} 255\n".encode()
            (root / name / f"{number:03d}.pgm").write_bytes(head + image.tobytes())
    return root
