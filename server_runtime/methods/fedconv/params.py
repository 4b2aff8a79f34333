"""The settings of FedConv."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fedwright.protocol.support.settings import check_range, hint
from fedwright.server_runtime.methods.params.submodels import Levels

if TYPE_CHECKING:
    from fedwright.server_runtime.blocks.fedconv.kernels import KernelForm

GroupBy = Literal["device", "cluster", "ratio"]


def _ratios() -> Levels:
    return Levels(sizes=(0.25, 0.5, 0.75, 1.0), choose="budget")


@dataclass(frozen=True)
class FedConvParams:
    """levels: shrinkage ratios. divergence: λ. The server's epochs are passes over its public examples.

    kernel_rate, lowest_rate, rate_period: lr_max, lr_min, T_max. slope_above, slope_below: s_p, s_n. channels, kernel,
    stride, padding: out, k, s, p.
    """

    levels: Levels = field(default_factory=_ratios)
    pretrain_epochs: int = field(default=5, metadata=hint("ordinary training before the first round; 0 leaves it out"))
    compress_epochs: int = field(default=20, metadata=hint("tuning of the compression before the first round"))
    again_epochs: int = field(default=20, metadata=hint("tuning of the compression after every round"))
    dilate_epochs: int = field(default=20, metadata=hint("tuning of the dilation in every round"))
    weigh_epochs: int = field(default=10, metadata=hint("tuning of the weights of the sum in every round"))
    server_epochs: int = field(default=0, metadata=hint("ordinary training of the global model after every round"))
    server_batch: int = field(default=32, metadata=hint("public examples per step"))
    server_rate: float = field(default=1e-3, metadata=hint("highest learning rate of ordinary training on the server"))
    kernel_rate: float = field(default=1e-3, metadata=hint("highest learning rate of kernels"))
    weigh_rate: float = field(default=1e-3, metadata=hint("highest learning rate of the weights of the sum"))
    lowest_rate: float = field(default=1e-5, metadata=hint("lowest learning rate on the server"))
    rate_period: int = field(default=4, metadata=hint("epochs from the highest learning rate to the lowest"))
    weigh_schedule: Literal["cosine", "constant"] = field(
        default="cosine", metadata=hint("learning rate of the weights of the sum: up and down, or always weigh_rate")
    )
    channels: int = field(default=16, metadata=hint("channels between the two 1×1 convolutions before a kernel"))
    stride: int = field(default=1, metadata=hint("stride of kernels"))
    padding: int = field(default=0, metadata=hint("zeros around weight images on each side that kernels change"))
    kernel: int | None = field(
        default=None, metadata=hint("taps of kernels along a side at most; as many as fit unless told otherwise")
    )
    holdout: float = field(default=0.2, metadata=hint("share of the public examples by which epochs are chosen"))
    group: GroupBy = field(
        default="cluster",
        metadata=hint("what is averaged before it is dilated: nothing, the clusters of a ratio, or a whole ratio"),
    )
    clusters: int = field(
        default=1, metadata=hint("clusters of a ratio at most, where no edge server makes them; by their last layers")
    )
    exchange: bool = field(
        default=False,
        metadata=hint("clusters that answer alike train their last layers on through each other's, on the devices"),
    )
    exchange_epochs: int = field(default=1, metadata=hint("passes over a device's data in the exchange"))
    exchange_share: float = field(default=0.5, metadata=hint("how much the other's answer counts in the exchange"))
    exchange_links: float = field(default=0.25, metadata=hint("share of the pairs of clusters that are linked"))
    keep_own: bool = field(
        default=True, metadata=hint("keep each device's model as it was after its training, for evaluation and export")
    )
    dilate: Literal["change", "model"] = field(
        default="change", metadata=hint("dilate what devices learned, or their models as printed in the paper")
    )
    weigh: Literal["channel", "layer", "element", "none"] = field(
        default="channel", metadata=hint("learned weights per channel, layer or element; none is the plain mean")
    )
    divergence: float = field(default=0.0, metadata=hint("cost of weight given to models far from the last global one"))
    equalise: bool = field(
        default=False, metadata=hint("bring dilated tensors to a common scale before they are summed")
    )
    shared: bool = field(default=True, metadata=hint("one kernel per layer; false: one per weight image"))
    delta: bool = field(default=True, metadata=hint("kernels start as crops; false: at random, as printed"))
    mlr: bool = field(default=False, metadata=hint("the paper's modified leaky ReLU behind every kernel"))
    slope_above: float = field(default=0.85, metadata=hint("its slope above zero"))
    slope_below: float = field(default=0.001, metadata=hint("its slope below zero"))
    personal_layers: tuple[str, ...] = field(
        default=(), metadata=hint("tensors whose names begin so never leave a device, such as ['head']")
    )
    transfer: bool = field(default=False, metadata=hint("the public labels are of another task than the devices'"))
    random_examples: int = field(
        default=0, metadata=hint("without public examples: tune kernels on so many random ones, by distillation")
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
        check_range("lowest_rate", self.lowest_rate, low=0, high=10)
        for name in ("rate_period", "channels", "stride"):
            check_range(name, getattr(self, name), low=1, high=10_000)
        check_range("padding", self.padding, low=0, high=10_000)
        if self.kernel is not None:
            check_range("kernel", self.kernel, low=1, high=100_000)
        check_range("clusters", self.clusters, low=1, high=1000)
        check_range("exchange_epochs", self.exchange_epochs, low=1, high=10_000)
        check_range("exchange_share", self.exchange_share, above=0, high=1)
        check_range("exchange_links", self.exchange_links, above=0, high=1)
        check_range("random_examples", self.random_examples, low=0, high=1_000_000)

    @property
    def slopes(self) -> tuple[float, float] | None:
        """Of the modified leaky ReLU, where it is wanted."""
        return (self.slope_above, self.slope_below) if self.mlr else None

    @property
    def kernel_form(self) -> "KernelForm":
        """How kernels are made."""
        from fedwright.server_runtime.blocks.fedconv.kernels import KernelForm

        return KernelForm(
            shared=self.shared,
            mlr=self.slopes,
            delta=self.delta,
            channels=self.channels,
            stride=self.stride,
            padding=self.padding,
            taps=self.kernel,
        )
