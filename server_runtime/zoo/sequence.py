"""Models for sequences: HASA's slimmable LSTM language model and a 1-D CNN for motion data."""

from torch import Tensor, nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo.base import Layers, ModelEntry, ZooModel, assembled, chain

EMBEDDING = 128


class LastHidden(nn.Module):
    """The hidden state of an LSTM after the last word: [n, words, embedding] to [n, hidden]."""

    def __init__(self, make: Layers, group: str) -> None:
        super().__init__()
        self.lstm = make.lstm(EMBEDDING, group)

    def forward(self, x: Tensor) -> Tensor:
        """The last hidden state."""
        states, _ = self.lstm(x)
        return states[:, -1]  # type: ignore[no-any-return]


def _lstm(spec: ModelSpec, make: Layers) -> ZooModel:
    if len(spec.input_shape) != 1:
        raise ConfigError(
            f"model {spec.model} reads word ids of shape (words,) but the input shape is {spec.input_shape}"
        )
    words = make.tag(nn.Embedding(spec.classes, EMBEDDING), weight=(None, None))
    encoder = chain(("words", words), ("lstm", LastHidden(make, "hidden")))
    return assembled(encoder, make.linear("hidden", spec.classes))


def _motion(spec: ModelSpec, make: Layers) -> ZooModel:
    if len(spec.input_shape) != 2 or spec.input_shape[1] < 4:
        raise ConfigError(
            f"model {spec.model} reads series of shape (channels, at least 4 steps) "
            f"but the input shape is {spec.input_shape}; choose another model or reshape the data"
        )
    encoder = chain(
        ("conv1", nn.Sequential(make.conv1d(spec.input_shape[0], "conv1", 5), nn.ReLU(), nn.MaxPool1d(2))),
        ("conv2", nn.Sequential(make.conv1d("conv1", "conv2", 5), nn.ReLU(), nn.MaxPool1d(2))),
        ("conv3", nn.Sequential(make.conv1d("conv2", "conv3", 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())),
        ("fc1", nn.Sequential(make.linear("conv3", "fc1"), nn.ReLU())),
    )
    return assembled(encoder, make.linear("fc1", spec.classes))


_LSTM = ModelEntry("lstm-lm", "tokens", {"hidden": 256}, (23,), 3437, _lstm)
_MOTION_SIZES = {"conv1": 32, "conv2": 64, "conv3": 64, "fc1": 64}

ENTRIES = (
    _LSTM,
    _LSTM.with_adapters("lstm-lora", rank=4),
    ModelEntry("cnn-motion", "series", _MOTION_SIZES, (9, 128), 6, _motion),
)
