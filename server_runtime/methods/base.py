"""A method is four hooks over shared blocks, called in this order every round."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.messages import Recipe, Refusal, Report, Returns, Stats
from fedwright.protocol.predictor import Prediction
from fedwright.server_runtime.blocks.budget import Budget
from fedwright.server_runtime.blocks.packing import Packing
from fedwright.server_runtime.blocks.rate_schedule import RateSchedule
from fedwright.server_runtime.blocks.robust import UNAVERAGED, Combine, Kind
from fedwright.server_runtime.blocks.trained_part import EVERYTHING
from fedwright.server_runtime.engine.inline import InlineExecutor
from fedwright.server_runtime.methods.state import Array, MethodState, Tensors
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

__all__ = ["Array", "MethodState", "Tensors"]


@dataclass(frozen=True)
class Assignment:
    """What one device does in this round. `recipe.epochs == 0` means: evaluate only.

    marks: the method's own note, such as where a window begins; it is kept with the plan and never sent.
    most_samples: how many samples the device may count for, as the rounds decide (None where they did not).
    """

    structure: Structure
    recipe: Recipe
    returns: Returns = field(default_factory=Returns)
    marks: tuple[int, ...] = ()
    most_samples: int | None = None


@dataclass(frozen=True)
class Emission:
    """Tensors made for one device: parameters and buffers, the objective's side inputs, and the frozen base.

    One dictionary emitted for many devices is stored and hashed once; a frozen base that stays the same
    from round to round is fetched by a device once. masks: of these tensors only the marked entries travel; the
    device takes the others as zero and, where the objective has element masks, keeps them so. public: rows that all
    devices may see, `x` and `y`; fetched once like a frozen base. Sides named as batch inputs go with these rows.
    passing: the frozen base is of this stage only, and nobody keeps it.
    """

    weights: Tensors
    sides: Tensors = field(default_factory=dict)
    frozen: Tensors = field(default_factory=dict)
    masks: Tensors = field(default_factory=dict)
    public: Tensors = field(default_factory=dict)
    passing: bool = False


@dataclass(frozen=True)
class CheckedUpdate:
    """One checked update: the tensors as `Returns` asked for them, and what the device measured.

    weight: 1, or less for an update that was made from an older model (asynchronous rounds). tasks: those that it
    answers; several when an edge put their updates together. devices: whose they are; none where that is the one that
    `absorb` names. cluster: what an edge that makes clusters calls the one that it is the mean of.
    """

    tensors: Tensors
    stats: Stats
    assignment: Assignment
    weight: float = 1.0
    tasks: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    cluster: str = ""


@dataclass(frozen=True)
class Relay:
    """A further assignment inside the same round, for a device that goes on where another stopped."""

    device: str
    assignment: Assignment


class Forecasts(Protocol):
    """How fast devices are, as far as anybody knows."""

    def predict(self, device: str, manifest: Manifest, *, batch: int, part: int | None = None) -> Prediction | None:
        """What a step will take on a device, in parts or not; None when nothing is known of it."""
        ...

    def bytes_per_s(self, device: str) -> float | None:
        """How fast its link is, each way; None when it was not measured."""
        ...


@dataclass(frozen=True)
class Setting:
    """What every method gets at its birth: the task, the common training recipe and one seed.

    returns: how updates travel. combine: how averaging methods average. manifest: what a structure's artifact
    needs (None where nobody builds any). device: the torch device of the server's own maths. public: examples
    that the server has itself. budget: what any device may use in a round, beside the limits that it reports itself
    (methods/shared/budget_fit.py). forecasts: how fast devices are. rounds: how many the run has; 0 where nobody knows.
    steps: of a device in a round, in place of epochs. schedule: how the learning rate moves from round to round. sums:
    what devices learnt is seen in sums only (update.secure). slower: a device short of memory does the same task in
    more time rather than with a smaller model.
    trainable, packing: which part of the model trains, and how the other is stored (methods/shared/partly_trained.py).
    engine: where pieces of the server's own work are done (engine/spread.py). prepare: has the artifacts of several
    structures built there, for `manifest` to be asked of each.
    """

    spec: ModelSpec
    optimizer: Optimizer
    initial: Tensors
    learning_rate: float
    batch: int
    epochs: int
    seed: int
    returns: Returns = field(default_factory=Returns)
    combine: Combine = field(default_factory=Combine)
    manifest: Callable[[Structure], Manifest] | None = None
    device: str = "cpu"
    public: PublicData | None = None
    budget: Budget = field(default_factory=Budget)
    forecasts: Forecasts | None = None
    rounds: int = 0
    steps: int | None = None
    schedule: RateSchedule = field(default_factory=RateSchedule)
    sums: bool = False
    slower: bool = False
    trainable: str | tuple[str, ...] = EVERYTHING
    packing: Packing = "float32"
    engine: Executor = field(default_factory=InlineExecutor)
    prepare: Callable[[Iterable[Structure]], None] = lambda structures: None

    def alone(self) -> "Setting":
        """Without what belongs to this process, so that it can go to another one."""
        return replace(self, manifest=None, forecasts=None, engine=InlineExecutor(), prepare=lambda structures: None)


@dataclass(frozen=True)
class SumRequest:
    """A sum of counts of classes, or of words, that a method wants of these devices; with `pooled` only their scores.

    samples: how much each says it can count; a sum that cannot come of it is refused.
    """

    samples: Mapping[str, int]
    length: int
    smoothing: float
    pooled: tuple[int, ...] = ()
    words: bool = False


@dataclass(frozen=True)
class SumResult:
    """The pooled counts, and how unlike them each device's own are."""

    pooled: tuple[int, ...]
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NoParams:
    """The settings of a method that has none."""


class Method(ABC):
    """A federated method. Every round calls `assign`, `emit`, `absorb` and `advance`, in this order.

    Beside these four hooks a method says which model a device should use (`model_of`) and what it must not forget
    (`state`, `restore`). All else is a method with a default that does nothing; `baselines/fedavg.py` needs one of
    them. Everything said with MUST is tried on every method by tests/contracts/test_method_contract.py.

    A method is made as `Class(params, setting)`. One from outside, named `python:module:class` or offered in the
    entry-point group `fedwright.methods`, says of itself: `params`, a frozen dataclass of its settings, each with a
    help text in its metadata; `summary`, one line, else the first of its docstring; `model`, one that it can train, for
    its starter config; `needs_public`, whether it cannot begin without examples on the server; `relays`; and `robust`,
    the choices of update.combine that do to its average what they should. Those that come with Fedwright say the same
    in registry.py, which is read without importing them.
    """

    params: ClassVar[type[Any]] = NoParams
    summary: ClassVar[str] = ""
    model: ClassVar[str] = "cnn-small"
    needs_public: ClassVar[bool] = False
    robust: ClassVar[Sequence[Kind]] = UNAVERAGED

    @classmethod
    def relays(cls, params: Any) -> str:
        """How to do without relays, such as "set pairs = false"; MUST be said where the method gives any."""
        return ""

    @abstractmethod
    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Who trains what this round. A second call for the same round MUST give the same (plans may be made anew)."""

    @abstractmethod
    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The weights made for this device. A second call MUST give the same (a round may be planned anew)."""

    def emit_all(self, assignments: Mapping[str, Assignment]) -> dict[str, Emission]:
        """What `emit` gives for each device; for a method whose models take long to make, on its setting's engine."""
        return {device: self.emit(device, assignment) for device, assignment in sorted(assignments.items())}

    @abstractmethod
    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Fold in one update; a returned relay starts another stage of this round.

        Updates come in the order of device ids, so sums of floats do not depend on who was faster. An update that is
        no change MUST leave the model as it was.
        """

    def pass_on(self) -> list[Relay]:
        """Further assignments once all updates of a stage are folded in; any starts another stage of this round."""
        return []

    @abstractmethod
    def advance(self) -> dict[str, float]:
        """Close the round and return metrics of the server's own. It MUST also work after a round without updates."""

    @abstractmethod
    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The model that a device should use now; for no device (an empty id) the one that all share."""

    def start_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The model with which a device's next training begins; another one where `model_of` gives a trained one."""
        return self.model_of(device)

    @abstractmethod
    def state(self) -> MethodState:
        """All that the next round depends on. `restore(state())` MUST be the identity, to the byte."""

    @abstractmethod
    def restore(self, state: MethodState) -> None:
        """Continue from a saved state; what was absorbed since MUST be forgotten."""

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Take in the reports of all devices that are here, also of those that take no part in this round.

        Called before `assign`, before `advance` and before the last `model_of`. Meeting the same devices twice MUST
        do what meeting them once does.
        """

    def planning_state(self) -> MethodState:
        """What `meet` and `assign` have learned; saved with the plan, because a resumed round is not planned again.

        `restore_planning(planning_state())` MUST be the identity.
        """
        return MethodState()

    def restore_planning(self, state: MethodState) -> None:
        """Know again what was learned when the plan was made."""

    def wanted_facts(self) -> tuple[str, ...]:
        """What it reads of devices' data beyond their classes: names of `protocol.data_summary.FACTS`.

        Devices are asked for these and for nothing else, and tell what their owners agree to: `report.data` MUST be
        read as one that may lack them. Without counts `class_counts` has 1 for every class that there is.
        """
        return ()

    def wanted_sum(self, reports: Mapping[str, Report]) -> SumRequest | None:
        """The sum of counts to ask of the devices that are here; None, MUST be None when all is known."""
        return None

    def take_sum(self, result: SumResult) -> None:
        """Take what came of `wanted_sum`."""

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """How edges may average updates on their way: by samples, or every device the same; None when they may not.

        Absorbing the mean with the summed weight MUST do what absorbing each update does, for updates whose artifact,
        weights, marks and returns are the same.
        """
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """A change as krum, multi_krum, majority and similarity compare it: among which others, and its entries.

        Entries are those of the whole model, NaN where the device has none. None: it is not averaged with others'.
        """
        del device, update
        return None

    def shrink(self, device: str, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """Less for a device that had no memory for its task; None leaves it to smaller batches.

        What is returned MUST need less memory than what was refused.
        """
        return None

    def personal_layers(self, device: str) -> tuple[str, ...]:
        """Layers of its model that a device keeps to itself, as the assignments' `returns.personal` say."""
        return ()
