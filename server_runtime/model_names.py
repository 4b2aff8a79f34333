"""The models of the zoo by name, and what each is; known without torch, which making one needs."""

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support import plugins
from fedwright.protocol.support.settings import suggest

ONNX = "onnx:"
SUMMARIES = {
    "mlp": "two hidden layers",
    "mlp-lora": "the mlp, wider, with low-rank adapters on every layer",
    "cnn-small": "two 3×3 convolutions, for 8×8 digits",
    "cnn-lora": "cnn-small with low-rank adapters on its linear layers",
    "lenet": "LeNet with 16 and 32 padded 5×5 filters",
    "lenet-valid": "LeNet of LG-FedAvg and HyperFLoRA, 6 and 16 unpadded 5×5 filters",
    "lenet-lora": "lenet-valid with low-rank adapters on its linear layers (HyperFLoRA: rank 1)",
    "cnn-flat": "FedConv's small CNN: 16 and 32 padded 5×5 filters, then the classes",
    "cnn-gn": "two 3×3 convolutions with group normalisation, 106 k parameters on 28×28 (FRAMP, reduced)",
    "cnn-hasa": "HASA's CNN: 64, 128, 256 filters and 256 linear units",
    "cnn1": "pFedClub's CNN1: 2 convolutions, 2 linear layers",
    "cnn2": "pFedClub's CNN2: 3 convolutions, 2 linear layers",
    "cnn3": "pFedClub's CNN3: 5 convolutions, 4 linear layers",
    "cnn4": "pFedClub's CNN4: 6 convolutions, 3 of them normalised, 3 linear layers",
    "resnet8": "ResNet-8 with batch normalisation",
    "resnet8-gn": "ResNet-8 with group normalisation",
    "resnet18": "ResNet-18 with batch normalisation",
    "resnet18-gn": "ResNet-18 with group normalisation",
    "mobilenet-v1": "MobileNetV1: depthwise separable",
    "mobilenet-v2": "MobileNetV2: inverted residuals",
    "mobilenet-v3": "MobileNetV3-small: squeeze and excitation",
    "vit-tiny": "ViT of width 64, 4 blocks, 4 heads, patches of 4",
    "vit-lora": "vit-tiny with low-rank adapters on attention and head (HyperFLoRA: rank 1)",
    "lstm-lm": "HASA's language model: embedding 128, LSTM 256, next word after the last",
    "lstm-lora": "lstm-lm with low-rank adapters on every gate and on the head",
    "cnn-motion": "three convolutions over time, for motion sensors",
    "gcn4": "four graph convolutions over an edge list, for node classification",
    "cnn-exits": "three normalised convolutions with a classifier after each; `exits` is the depth",
}


def resolve(name: str) -> str:
    """The name from which a model is made: what an installed package offers becomes `python:module:function`."""
    if is_file(name):
        return name
    plain, at, width = name.partition("@")
    plugin = plugins.find(plugins.MODELS, plain, taken=SUMMARIES)
    return name if plugin is None else f"{plugin.reference}{at}{width}"


def is_file(name: str) -> bool:
    """Whether a name stands for an ONNX file."""
    return name.startswith(ONNX)


def offered() -> list[plugins.Plugin]:
    """The models of installed packages; none of them is imported."""
    return plugins.offered(plugins.MODELS, taken=SUMMARIES)


def check(name: str) -> None:
    """Raise ConfigError unless it is one of ours, of an installed package, or a reference; nothing is imported."""
    plain = name.partition("@")[0]
    if is_file(name):
        return
    if plain not in SUMMARIES and not plugins.is_reference(resolve(name)):
        names = [*SUMMARIES, *(plugin.name for plugin in offered())]
        raise ConfigError(f"there is no model {name!r}; {suggest(plain, names)}, python:module:function, or onnx:file")
