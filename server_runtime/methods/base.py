"""A method is four hooks over shared blocks, called in this order every round, and a registry finds it by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from numpy.typing import NDArray

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Recipe, Refusal, Report, Returns, Stats
from fedwright.protocol.predictor import Prediction
from fedwright.server_runtime.blocks.budget import Budget
from fedwright.server_runtime.blocks.robust import Combine
from fedwright.server_runtime.public_data import PublicData
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

Array = NDArray[Any]
Tensors = dict[str, Array]


@dataclass(frozen=True)
class Assignment:
    """What one device does in this round. `recipe.epochs == 0` means: evaluate only.

    marks: the method's own note, such as where a window begins; it is kept with the plan and never sent.
    """

    structure: Structure
    recipe: Recipe
    returns: Returns = field(default_factory=Returns)
    marks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Emission:
    """Tensors made for one device: parameters and buffers, the objective's side inputs, and the frozen base.

    One dictionary emitted for many devices is stored and hashed once; a frozen base that stays the same
    from round to round is fetched by a device once. masks: of these tensors only the marked entries travel; the
    device takes the others as zero and, where the objective has element masks, keeps them so. public: rows that all
    devices may see, `x` and `y`; fetched once like a frozen base. Sides named as batch inputs go with these rows.
    """

    weights: Tensors
    sides: Tensors = field(default_factory=dict)
    frozen: Tensors = field(default_factory=dict)
    masks: Tensors = field(default_factory=dict)
    public: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Absorbed:
    """One checked reply: the tensors as `Returns` asked for them, and what the device measured.

    weight: 1, or less for an update that was made from an older model (asynchronous rounds). tasks: those that it
    answers; several when an edge put their updates together.
    """

    tensors: Tensors
    stats: Stats
    assignment: Assignment
    weight: float = 1.0
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Relay:
    """A further assignment inside the same round, for a device that goes on where another stopped."""

    device: str
    assignment: Assignment


class Forecasts(Protocol):
    """How fast devices are, as far as anybody knows."""

    def predict(self, device: str, manifest: Manifest, *, batch: int) -> Prediction | None:
        """What a step will take on a device; None when nothing is known of it."""
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
    (methods/fitting.py). forecasts: how fast devices are. rounds: how many the run has; 0 where nobody knows.
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


class Method(Protocol):
    """Called in this order every round; `state`/`restore` make a run resumable to the bit.

    - `assign` MUST NOT change state that a repeated call would change again (a round may be planned anew).
    - `absorb` is called in the sorted order of device ids, so floating-point sums do not depend on arrival.
    - `state` MUST hold all that the next round depends on; `restore(state())` MUST be the identity.
    """

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Who trains what this round."""
        ...

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The weights made for this device."""
        ...

    def absorb(self, device: str, reply: Absorbed) -> Relay | None:
        """Fold in one reply; a returned relay starts another stage of this round."""
        ...

    def advance(self) -> dict[str, float]:
        """Close the round; return metrics of the server's own."""
        ...

    def personal(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The model that this device should use now (the global one where there is nothing personal)."""
        ...

    def state(self) -> Tensors:
        """All that the next round depends on."""
        ...

    def restore(self, state: Tensors) -> None:
        """Continue from a saved state."""
        ...


@runtime_checkable
class Meets(Protocol):
    """A method that wants to know every device that is here, not only those that take part in a round."""

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Take in the reports of all devices present; called before `assign` and before the last `personal`."""
        ...


def meet(method: Method, reports: Mapping[str, Report]) -> None:
    """Introduce the devices that are here to a method that wants to know them."""
    if isinstance(method, Meets):
        method.meet(reports)


@runtime_checkable
class Learns(Protocol):
    """A method that learns something when it plans a round, which is saved with the plan.

    - `recall(notes())` MUST be the identity: a round that another process planned goes on with what that one knew.
    """

    def notes(self) -> bytes:
        """What `assign` and `meet` have learned."""
        ...

    def recall(self, notes: bytes) -> None:
        """Know again what was learned."""
        ...


def notes_of(method: Method) -> bytes:
    """What a method wants to be saved with a plan; empty for one that learns nothing."""
    return method.notes() if isinstance(method, Learns) else b""


def recall(method: Method, notes: bytes) -> None:
    """Give a method back what it knew when it made a plan."""
    if notes and isinstance(method, Learns):
        method.recall(notes)


@runtime_checkable
class Pools(Protocol):
    """A method that may get the mean of several replies instead of each, so that edges can put them together.

    - `absorb` of the mean with the summed weight MUST do what absorbing each reply does, for replies whose artifact,
      weights, marks and returns are the same.
    """

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """How replies count in the mean: by samples, or every device the same; None when each must come by itself."""
        ...


@runtime_checkable
class Shrinks(Protocol):
    """A method that can offer less to a device without the memory for its task; for others the batch shrinks.

    - `shrink` MUST return an assignment that needs less memory than the refused one, or None when there is none.
    """

    def shrink(self, device: str, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """The next smaller assignment for this round."""
        ...


@runtime_checkable
class KeepsLayers(Protocol):
    """A method in which devices keep layers to themselves, as its assignments say in `returns.personal`."""

    def personal_layers(self, device: str) -> tuple[str, ...]:
        """The names of these layers in the model of a device."""
        ...


def personal_layers(method: Method, device: str) -> tuple[str, ...]:
    """Layers of its model that a device has of its own; what the server has in their place is not used there."""
    return method.personal_layers(device) if isinstance(method, KeepsLayers) else ()


@dataclass(frozen=True)
class Entry:
    """One line of the registry; `model` is one that the method can train, to start from.

    needs_public: it cannot begin without examples on the server. relays: whether it passes work on inside a round with
    these parameters, as advice how to do without that; else empty. start: settings, by section, with which its starter
    config differs from the defaults, so that it learns something on the embedded digits.
    """

    name: str
    summary: str
    params: type[Any]
    make: Callable[[Any, Setting], Method]
    model: str = "cnn-small"
    needs_public: bool = False
    relays: Callable[[Any], str] = lambda params: ""
    start: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


METHODS: dict[str, Entry] = {}


def register(entry: Entry) -> None:
    """Add a method; a second one of the same name is a programming error."""
    if entry.name in METHODS:
        raise ValueError(f"method {entry.name} is registered twice; choose another name")
    METHODS[entry.name] = entry


def find(name: str) -> Entry:
    """The method of that name, or an error that lists the names there are."""
    if name not in METHODS:
        raise ConfigError(f"unknown method {name!r}; choose one of {', '.join(sorted(METHODS))}")
    return METHODS[name]
