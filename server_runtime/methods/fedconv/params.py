"""The settings of FedConv."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.support.settings import check_range
from fedwright.server_runtime.embedded_sets import STARTER_PUBLIC
from fedwright.server_runtime.methods.shared.submodels import Levels

# Slopes of the modified leaky ReLU above and below zero.
MLR = (0.85, 0.001)


def _help(text: str) -> dict[str, str]:
    return {"help": text}


def _ratios() -> Levels:
    return Levels(sizes=(0.25, 0.5, 0.75, 1.0), choose="budget")


# Every ratio is there even where all devices could hold the whole model, and fewer passes than the paper's.
START = {
    "method": {
        "compress_epochs": 10,
        "again_epochs": 4,
        "dilate_epochs": 4,
        "weigh_epochs": 4,
        "levels": {"choose": "in_turn"},
    },
    "public": STARTER_PUBLIC,
}


@dataclass(frozen=True)
class FedConvParams:
    """levels: shrinkage ratios. divergence: λ. The server's epochs are passes over its public examples."""

    levels: Levels = field(default_factory=_ratios)
    pretrain_epochs: int = field(default=5, metadata=_help("ordinary training before the first round; 0 leaves it out"))
    compress_epochs: int = field(default=20, metadata=_help("tuning of the compression before the first round"))
    again_epochs: int = field(default=20, metadata=_help("tuning of the compression after every round"))
    dilate_epochs: int = field(default=20, metadata=_help("tuning of the dilation in every round"))
    weigh_epochs: int = field(default=10, metadata=_help("tuning of the weights of the sum in every round"))
    server_epochs: int = field(default=0, metadata=_help("ordinary training of the global model after every round"))
    server_batch: int = field(default=32, metadata=_help("public examples per step"))
    server_rate: float = field(default=1e-3, metadata=_help("highest learning rate of ordinary training on the server"))
    kernel_rate: float = field(default=1e-3, metadata=_help("highest learning rate of kernels"))
    weigh_rate: float = field(default=1e-3, metadata=_help("highest learning rate of the weights of the sum"))
    holdout: float = field(default=0.2, metadata=_help("share of the public examples by which epochs are chosen"))
    hierarchy: bool = field(
        default=True, metadata=_help("devices of one ratio are averaged before they are dilated, as edge servers do")
    )
    exchange: bool = field(
        default=False,
        metadata=_help("ratios that answer alike teach each other's last layers, as edges can"),
    )
    dilate: Literal["change", "model"] = field(
        default="change", metadata=_help("dilate what devices learned, or their models as printed in the paper")
    )
    weigh: Literal["channel", "layer", "element", "none"] = field(
        default="channel", metadata=_help("learned weights per channel, layer or element; none is the plain mean")
    )
    divergence: float = field(
        default=0.0, metadata=_help("cost of weight given to models far from the last global one")
    )
    equalise: bool = field(
        default=False, metadata=_help("bring dilated tensors to a common scale before they are summed")
    )
    shared: bool = field(default=True, metadata=_help("one kernel per layer; false: one per weight image"))
    delta: bool = field(default=True, metadata=_help("kernels start as crops; false: at random, as printed"))
    mlr: bool = field(default=False, metadata=_help("the paper's modified leaky ReLU behind every kernel"))
    personal_layers: tuple[str, ...] = field(
        default=(), metadata=_help("tensors whose names begin so never leave a device, such as ['head']")
    )
    transfer: bool = field(default=False, metadata=_help("the public labels are of another task than the devices'"))
    random_examples: int = field(
        default=0, metadata=_help("without public examples: tune kernels on so many random ones, by distillation")
    )

    def __post_init__(self) -> None:
        """Check values."""
        for name in ("pretrain_epochs", "compress_epochs", "again_epochs", "dilate_epochs", "weigh_epochs"):
            check_range(name, getattr(self, name), low=0, high=10_000)
        check_range("server_epochs", self.server_epochs, low=0, high=10_000)
        check_range("server_batch", self.server_batch, low=1, high=65_536)
        check_range("server_rate", self.server_rate, above=0, high=10)
        check_range("kernel_rate", self.kernel_rate, above=0, high=10)
        check_range("weigh_rate", self.weigh_rate, above=0, high=10)
        check_range("holdout", self.holdout, above=0, high=0.9)
        check_range("divergence", self.divergence, low=0)
        check_range("random_examples", self.random_examples, low=0, high=1_000_000)

    @property
    def slopes(self) -> tuple[float, float] | None:
        """Of the modified leaky ReLU, where it is wanted."""
        return MLR if self.mlr else None
