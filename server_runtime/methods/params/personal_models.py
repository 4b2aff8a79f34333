"""Settings of methods whose devices keep models of their own architecture."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report
from fedwright.protocol.support.settings import check_range, hint
from fedwright.server_runtime.seeds import number_of

if TYPE_CHECKING:
    from fedwright.server_runtime.blocks.pfedclub.stitch_tuning import Tuning


@dataclass(frozen=True)
class PersonalModelParams:
    """Who has which model: `devices` by id, else what the device reports, else `models` in turn, else the run's."""

    models: tuple[str, ...] = field(
        default=(), metadata={"help": "dealt out by the number in an id; such as cnn1 or mobilenet-v2@0.25 (its width)"}
    )
    devices: dict[str, str] = field(default_factory=dict, metadata={"help": "the model of a device by its id"})

    def name_of(self, device: str, report: Report, *, default: str, seed: int) -> str:
        """The name of a device's model; code of its own only when the server was told of it."""
        if device in self.devices:
            return self.devices[device]
        if report.model:
            if report.model.startswith("python:") and report.model not in self.models:
                raise ConfigError(f"it names {report.model}, which is not among the run's own.models; add it there")
            return report.model
        return self.models[number_of(device, seed) % len(self.models)] if self.models else default


@dataclass(frozen=True)
class StandaloneParams:
    """own: who has which model."""

    own: PersonalModelParams = field(default_factory=PersonalModelParams)


@dataclass(frozen=True)
class FlexiFedParams:
    """own: who has which model. strategy: which layers are averaged among whom."""

    own: PersonalModelParams = field(default_factory=PersonalModelParams)
    strategy: Literal["basic", "clustered", "max"] = field(
        default="max", metadata={"help": "basic: layers of all; clustered: and equal models whole; max: longest common"}
    )


@dataclass(frozen=True)
class FedGHParams:
    """own: who has which model; the run's model gives the head. server_rate: step size of the head."""

    own: PersonalModelParams = field(default_factory=PersonalModelParams)
    server_rate: float = field(default=0.01, metadata={"help": "step size of the common head"})
    server_epochs: int = field(default=1, metadata={"help": "passes over the class means per round"})

    def __post_init__(self) -> None:
        """Check values."""
        check_range("server_rate", self.server_rate, above=0)
        check_range("server_epochs", self.server_epochs, low=1)


@dataclass(frozen=True)
class FedMDParams:
    """own: who has which model. transfer_epochs, digest_epochs: passes over the public examples."""

    own: PersonalModelParams = field(default_factory=PersonalModelParams)
    transfer_epochs: int = field(default=5, metadata={"help": "passes over labelled public examples at the start"})
    digest_epochs: int = field(default=1, metadata={"help": "passes over public examples per round"})
    digest_batch: int = field(default=128, metadata={"help": "public examples per step"})

    def __post_init__(self) -> None:
        """Check values."""
        check_range("transfer_epochs", self.transfer_epochs, low=0, high=100_000)
        check_range("digest_epochs", self.digest_epochs, low=0, high=100_000)
        check_range("digest_batch", self.digest_batch, low=1, high=65_536)


@dataclass(frozen=True)
class FCCLParams:
    """apart: λ. agree: weight of the collaborative step's loss. lesson: ω, temperature: τ of the private step's."""

    own: PersonalModelParams = field(default_factory=PersonalModelParams)
    digest_epochs: int = field(default=1, metadata={"help": "passes over public examples per round"})
    digest_batch: int = field(default=64, metadata={"help": "public examples per step"})
    agree: float = field(default=0.1, metadata={"help": "weight of the correlation with the common logits"})
    apart: float = field(default=0.0051, metadata={"help": "weight of telling classes apart in it"})
    lesson: float = field(default=1.0, metadata={"help": "weight of the model before own training in that; 0 = none"})
    temperature: float = field(default=2.0, metadata={"help": "softens what that model teaches"})

    def __post_init__(self) -> None:
        """Check values."""
        check_range("digest_epochs", self.digest_epochs, low=0, high=100_000)
        check_range("digest_batch", self.digest_batch, low=2, high=65_536)
        check_range("agree", self.agree, above=0)
        check_range("apart", self.apart, low=0)
        check_range("lesson", self.lesson, low=0)
        check_range("temperature", self.temperature, above=0)


@dataclass(frozen=True)
class FedKEMFParams:
    """own: who has which model; the run's model is the knowledge network. distill: weight of either teacher."""

    own: PersonalModelParams = field(default_factory=PersonalModelParams)
    distill: float = field(default=0.5, metadata={"help": "weight of the other model's word on the device"})
    ensemble: Literal["mean", "max"] = field(default="mean", metadata={"help": "how the devices' logits are joined"})
    fuse_epochs: int = field(default=3, metadata={"help": "passes over the public examples per round"})
    fuse_rate: float = field(default=0.001, metadata={"help": "step size of the fusion"})

    def __post_init__(self) -> None:
        """Check values."""
        check_range("distill", self.distill, above=0)
        check_range("fuse_epochs", self.fuse_epochs, low=0)
        check_range("fuse_rate", self.fuse_rate, above=0)


@dataclass(frozen=True)
class TeacherParams:
    """Settings of methods that make teachers of blocks. groups: K. distill: λ. temperature: τ of NT-Xent."""

    own: PersonalModelParams = field(default_factory=PersonalModelParams)
    groups: int = field(default=4, metadata=hint("groups of blocks that do alike"))
    rows: int = field(default=64, metadata=hint("public examples by which blocks are compared"))
    distill: float = field(default=0.2, metadata=hint("weight of the teacher on the device"))
    tune_epochs: int = field(default=3, metadata=hint("passes over the public examples for each candidate"))
    tune_rate: float = field(default=0.001, metadata=hint("step size of what is tuned of a candidate"))
    tune_batch: int = field(default=64, metadata=hint("public examples per step"))
    temperature: float = field(default=0.07, metadata=hint("of the loss without labels"))

    def __post_init__(self) -> None:
        """Check values."""
        check_range("groups", self.groups, low=1)
        check_range("rows", self.rows, low=2)
        check_range("distill", self.distill, low=0)
        check_range("tune_epochs", self.tune_epochs, low=0)
        check_range("tune_rate", self.tune_rate, above=0)
        check_range("tune_batch", self.tune_batch, low=2)
        check_range("temperature", self.temperature, above=0)

    def tuning(self, *, everything: bool = False) -> "Tuning":
        """How candidates are tuned: their stitches, or everything."""
        from fedwright.server_runtime.blocks.pfedclub.stitch_tuning import Tuning

        return Tuning(self.tune_epochs, self.tune_rate, self.tune_batch, self.temperature, everything=everything)


@dataclass(frozen=True)
class PFedHRParams(TeacherParams):
    """Candidates are made for all devices together."""

    candidates: int = field(default=4, metadata=hint("reassembled models per round"))
    least: int = field(default=4, metadata=hint("fewest layers of a candidate"))
    longest: int = field(default=6, metadata=hint("most layers of a candidate"))

    def __post_init__(self) -> None:
        """Check values."""
        super().__post_init__()
        check_range("candidates", self.candidates, low=1)
        check_range("least", self.least, low=1)
        check_range("longest", self.longest, low=self.least)


@dataclass(frozen=True)
class PFedClubParams(TeacherParams):
    """most: S_max. eta: the size limit of pFedClub+."""

    most: int = field(default=8, metadata=hint("candidates for each device and round"))
    finalists: int | None = field(
        default=None, metadata=hint("tune only so many of them, the most alike; all unless told otherwise")
    )
    eta: float | None = field(default=None, metadata=hint("a teacher is at most 1 + eta times its pupil; 0.1 is usual"))
    order: Literal["raw", "relative", "none"] = field(
        default="raw", metadata=hint("blocks in the order of their number, of number / count, or in any")
    )
    anchor: Literal["random", "similar", "first"] = field(
        default="random",
        metadata=hint("the first block: any of its group, the most similar one, or that of the least number"),
    )
    completion: bool = field(default=True, metadata=hint("own blocks where the search ends early"))
    head: Literal["own", "any"] = field(
        default="own", metadata=hint("a teacher ends in its pupil's head, or in any head of the group")
    )

    def __post_init__(self) -> None:
        """Check values."""
        super().__post_init__()
        check_range("most", self.most, low=1, high=1000)
        if self.finalists is not None:
            check_range("finalists", self.finalists, low=1)
        if self.eta is not None:
            check_range("eta", self.eta, above=-1)
