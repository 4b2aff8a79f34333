"""A CNN of one's own on folders of images, one folder per class."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torch import nn

import fedwright as fw

SIZE = 24
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 8


class ShapeNet(nn.Module):
    """Two convolutions; any torch module whose output is a row of logits will do."""

    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(16 * (SIZE // 4) ** 2, classes)

    def forward(self, x):
        return self.head(self.body(x))


def draw(folder, each=100):
    """Shapes of random size and place, as grey images."""
    rng = np.random.default_rng(0)
    for name in ("circle", "square", "triangle"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            image = Image.new("L", (SIZE, SIZE))
            half = int(rng.integers(5, 9))
            x, y = (int(value) for value in rng.integers(half, SIZE - half, 2))
            pen = ImageDraw.Draw(image)
            if name == "circle":
                pen.ellipse((x - half, y - half, x + half, y + half), fill=255)
            elif name == "square":
                pen.rectangle((x - half, y - half, x + half, y + half), fill=255)
            else:
                pen.polygon([(x - half, y + half), (x + half, y + half), (x, y - half)], fill=255)
            image.save(folder / name / f"{number}.png")


draw(Path("shapes"))
settings = {"train": {"epochs": 5}, "simulate": {"processes": 0, "alpha": 5.0}}
run = fw.simulate(model=ShapeNet, data="images:shapes", devices=8, rounds=ROUNDS, settings=settings)
run.export("model.onnx")
print(run)
