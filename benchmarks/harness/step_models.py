"""Models that `fedwright bench train-step` times beside those of the zoo."""

from torch import Tensor, nn

from fedwright.server_runtime.spec import ModelSpec

WORDS, EMBEDDING, HIDDEN = 3437, 128, 256


class GruLanguageModel(nn.Module):
    """As the zoo's `lstm-lm`, with a GRU."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, EMBEDDING)
        self.gru = nn.GRU(EMBEDDING, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, words)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the word after the last."""
        states, _ = self.gru(self.words(x))
        answer: Tensor = self.head(states[:, -1])
        return answer


def gru_lm(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model for that many words; it reads titles of any length."""
    return GruLanguageModel(classes)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = [(channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        self.layers = nn.Sequential()
        for place, (taken, given, kernel, step) in enumerate(sizes):
            self.layers.append(nn.Conv2d(taken, given, kernel, step, kernel // 2, bias=False))
            self.layers.append(nn.BatchNorm2d(given))
            if place < 2:
                self.layers.append(nn.ReLU())
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's sum, rectified."""
        return nn.functional.relu(self.layers(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """25.6 million parameters at 1,000 classes, as published."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential()
        channels = 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for place in range(count):
                width = 64 << stage
                self.blocks.append(Bottleneck(channels, width, 2 if stage and not place else 1))
                channels = 4 * width
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.blocks(self.pool(self.stem(x))).mean((2, 3)))
        return logits


def resnet50(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model for so many classes, for images of any size."""
    return ResNet50(classes)


SPECS = {
    "gru-lm": ModelSpec(f"python:{__name__}:gru_lm", (23,), WORDS),
    "resnet50": ModelSpec(f"python:{__name__}:resnet50", (3, 224, 224), 1000),
}
