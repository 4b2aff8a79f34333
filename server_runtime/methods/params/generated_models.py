"""Settings of methods whose server writes a device's weights, or keeps a base under its adapters."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fedwright.protocol.support.settings import check_range, hint

if TYPE_CHECKING:
    from fedwright.server_runtime.blocks.hypernet import Step


@dataclass(frozen=True)
class HypernetParams:
    """A hypernetwork of linear layers, and its optimizer: SGD with momentum."""

    hidden: int = field(default=100, metadata={"help": "width of the trunk"})
    layers: int = field(default=4, metadata={"help": "linear layers of the trunk"})
    server_rate: float = field(default=0.01, metadata={"help": "learning rate of the hypernetwork"})
    momentum: float = field(default=0.9, metadata={"help": "momentum of the hypernetwork's optimizer"})
    weight_decay: float = field(
        default=0.0, metadata={"help": "weight decay of the hypernetwork; the papers have 0.001"}
    )
    clip_norm: float = field(default=50.0, metadata={"help": "largest norm of the hypernetwork's gradient"})
    alike: int = field(
        default=0,
        metadata=hint(
            "devices in groups of so many or more that share a description (update.secure needs it); 0 = none"
        ),
    )

    def __post_init__(self) -> None:
        """Check values."""
        for key in ("hidden", "layers"):
            check_range(key, getattr(self, key), low=1)
        check_range("server_rate", self.server_rate, above=0)
        check_range("alike", self.alike, low=0)
        check_range("clip_norm", self.clip_norm, above=0)
        check_range("weight_decay", self.weight_decay, low=0)
        check_range("momentum", self.momentum, low=0, high=0.999)

    def step(self) -> "Step":
        """The optimizer."""
        from fedwright.server_runtime.blocks.hypernet import Step

        return Step(self.server_rate, self.momentum, self.weight_decay, self.clip_norm)


@dataclass(frozen=True)
class BaseParams:
    """rank: q. The base learns by FedAvg for `pretrain_rounds`, from the start or from the weights in a file."""

    pretrain_rounds: int | None = field(
        default=None, metadata={"help": "rounds of FedAvg before the base is frozen; half of the run's without this"}
    )
    base: str | None = field(default=None, metadata={"help": "safetensors file that the base begins with"})
    rank: int = field(default=1, metadata={"help": "rank of the adapters"})
    alpha: float | None = field(
        default=None, metadata={"help": "adapters are scaled by alpha / rank, as in PEFT; by 1 without it"}
    )
    targets: str | tuple[str, ...] = field(
        default=(),
        metadata={"help": 'layers that get adapters: ["q", "v"], a pattern "enc.*fc[12]" or "all-linear"; as in PEFT'},
    )

    def __post_init__(self) -> None:
        """Check values."""
        if self.pretrain_rounds is not None:
            check_range("pretrain_rounds", self.pretrain_rounds, low=0)
        check_range("rank", self.rank, low=1)
        if self.alpha is not None:
            check_range("alpha", self.alpha, above=0)


@dataclass(frozen=True)
class PFedHNParams(HypernetParams):
    """describe: what a model is written from."""

    describe: Literal["classes", "embedding"] = field(
        default="classes", metadata={"help": "what a model is written from: the device's classes, or a learnt vector"}
    )
    embedding: int = field(default=8, metadata={"help": "size of a learnt vector; the paper takes 1 + devices / 4"})
    parallel: bool = field(default=False, metadata={"help": "average over a round's devices instead of one by one"})

    def __post_init__(self) -> None:
        """Check values."""
        HypernetParams.__post_init__(self)
        check_range("embedding", self.embedding, low=1)


@dataclass(frozen=True)
class AdaptersPrivateParams(BaseParams):
    """Only the base's own."""


@dataclass(frozen=True)
class HyperFLoRAParams(BaseParams, HypernetParams):
    """exchanges: E."""

    hidden: int = field(default=128, metadata=hint("width of the hypernetwork"))
    layers: int = field(default=3, metadata=hint("linear layers of its trunk"))
    server_rate: float = field(default=0.05, metadata=hint("learning rate of the hypernetwork; the paper has 0.01"))
    pairs: bool = field(default=True, metadata=hint("also let pairs of devices train an adapter in turn"))
    exchanges: int = field(default=3, metadata=hint("how often each of a pair has its turn"))
    sequential: bool = field(default=False, metadata=hint("follow each change on its own instead of their mean"))
    head: bool = field(default=False, metadata=hint("write the classification layer too"))
    mask_logits: bool = field(default=False, metadata=hint("let models give only classes that the device holds"))
    choose_every: int = field(
        default=0, metadata=hint("rounds after which devices measure it; the best counts in the end; 0 = the last does")
    )

    def __post_init__(self) -> None:
        """Check values."""
        BaseParams.__post_init__(self)
        HypernetParams.__post_init__(self)
        check_range("exchanges", self.exchanges, low=1)
        check_range("choose_every", self.choose_every, low=0)
