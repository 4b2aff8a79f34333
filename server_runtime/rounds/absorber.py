"""Folds a stage's updates into a method; those at which it fails are left out for good and the stage is done again.

A method may have changed before it failed, so it goes back to what is durable, as a resumed server does: after a
rejection the running server and one that was killed right then go on from the same place.
"""

import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedwright.protocol.errors import BadBlob, BadUpdate, ConfigError, DataError, ProtocolError, RoundError
from fedwright.protocol.messages import Update
from fedwright.server_runtime.blocks.robust import Combine
from fedwright.server_runtime.blocks.robust_weights import robust_weights
from fedwright.server_runtime.fleet.admission import magnitude
from fedwright.server_runtime.methods.base import CheckedUpdate, Method, MethodState, Relay, Tensors
from fedwright.server_runtime.rounds.pooled_tasks import checked_update
from fedwright.server_runtime.rounds.size_limits import LEAST_FOR_MEDIAN, ChangeSize, SizeLimit, SizeLimits, limits_of
from fedwright.server_runtime.rounds.store.base import Planned
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader

log = logging.getLogger(__name__)

# What a method's maths can fail with when it is given odd figures; a full disk or an interrupt is none of these.
FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    ConfigError,
    DataError,
    ProtocolError,
)
# The largest norm of a change with which nothing can be compared, as a share of the model's.
FIRST_RATIO = 0.1
# Of how many devices it is remembered how large their last change was.
KEPT_SIZES = 1000


@dataclass(frozen=True)
class Incoming:
    """One update to fold in: that of a task, or the mean of several whose tasks are `tasks`."""

    planned: Planned
    update: Update
    tasks: tuple[Planned, ...]
    weight: float = 1.0


@dataclass(frozen=True)
class Absorbed:
    """What a stage came to: what is passed on, or else the round's own metrics. tensors: blobs that were in it."""

    relays: list[Relay]
    metrics: dict[str, float]
    tensors: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Stage:
    """The acts around a stage. restart: put the method where it stood before the stage. finish: close the round.

    looks_back: updates come a few at a time, so that they are also compared with those before them.
    """

    number: int
    restart: Callable[[], None]
    finish: Callable[[], dict[str, float]]
    looks_back: bool = False


class Unusable(Exception):
    """A method failed at one update, or (None) nobody knows at which."""

    def __init__(self, culprit: Incoming | None, reason: str) -> None:
        super().__init__(reason)
        self.culprit = culprit


@dataclass
class Absorber:
    """norm_factor: no change is larger than this many times the median of its stage. combine: who counts how much."""

    tracker: TaskTracker
    reader: UpdateReader
    norm_factor: float | None = None
    combine: Combine = field(default_factory=Combine)
    # By device, of stages before: how large its change was, and what it was held to.
    _earlier: dict[str, tuple[ChangeSize, SizeLimits | None]] = field(default_factory=dict)
    _told: bool = False

    def absorb(self, method: Method, incoming: Sequence[Incoming], stage: Stage) -> Absorbed:
        """Fold in all that can be; where that is nothing and the method fails at it, it stays where it was.

        RoundError when nothing came and the method fails at that.
        """
        left, done = list(incoming), None
        while done is None:
            try:
                done = self._attempt(method, left, stage)
            except Unusable as err:
                if incoming and not left:
                    done = Absorbed([], {})
                else:
                    left = self._without_culprits(method, left, stage, err)
                stage.restart()
        self._remember(left, stage)
        self.reader.forget(planned.task.task for one in incoming for planned in one.tasks)
        refs = [one.update.tensors for one in incoming]
        return replace(done, tensors={ref.sha256 for ref in refs if ref is not None})

    def _attempt(self, method: Method, incoming: Sequence[Incoming], stage: Stage) -> Absorbed:
        """One try from the start of the stage to its end; Unusable when it fails."""
        relays = []
        limits = self._limits(incoming, stage)
        with np.errstate(all="ignore"):
            weights = self._weights(method, incoming, limits)
            for one, weight in zip(incoming, weights, strict=True):
                relay = self._absorb_one(method, one, limits, weight) if weight > 0 else None
                if relay is not None:
                    relays.append(relay)
            try:
                relays += method.pass_on()
                metrics = {} if relays else stage.finish()
            except FAULTS as err:
                raise Unusable(None, f"the method cannot close the round with it: {err}") from err
            problem = state_problem(method.state())
        if problem is not None:
            raise Unusable(None, f"with it {problem}")
        return Absorbed(relays, metrics)

    def _absorb_one(self, method: Method, one: Incoming, limits: SizeLimits | None, weight: float) -> Relay | None:
        checked = self._checked(one, limits, weight)
        try:
            return method.absorb(one.planned.device, checked)
        except FAULTS as err:
            raise Unusable(one, f"the method cannot take it: {err}") from err

    def _checked(self, one: Incoming, limits: SizeLimits | None, weight: float) -> CheckedUpdate:
        try:
            values = self.reader.take(one.planned, one.update)
        except (BadUpdate, BadBlob) as err:
            raise Unusable(one, str(err)) from err
        if limits is not None and _is_change(one):
            held = limits.held(values, self._size(one))
            if held is not values:
                self._say_held(one)
            values = held
        devices = [planned.device for planned in one.tasks]
        return checked_update(one.planned, one.update, values, weight=one.weight * weight, devices=devices)

    def _say_held(self, one: Incoming) -> None:
        """Once for all to see: with it, what the method does is not what its paper says."""
        if self.combine.kind == "norm_bound":
            return
        log.log(
            logging.DEBUG if self._told else logging.WARNING,
            "the change of %s is so much longer than those of others that it counts in part; update.norm_factor = 0"
            " takes all changes as they are, where every device is to be trusted",
            one.planned.device,
        )
        self._told = True

    def _limits(self, incoming: Sequence[Incoming], stage: Stage) -> SizeLimits | None:
        """norm_factor times the medians of all changes, one voice for each device.

        Where too few come at a time, what others sent before counts too; before there is enough of that, a change is
        short beside the model that it is one of.
        """
        factor = 1.0 if self.combine.kind == "norm_bound" else self.norm_factor
        changes = [one for one in incoming if _is_change(one)]
        sizes = {one.planned.device: self._size(one) for one in changes}
        if factor is None or not stage.looks_back:
            return limits_of(list(sizes.values()), factor)
        if len(sizes) < LEAST_FOR_MEDIAN:
            earlier = {d: size if held is None else held.held_size(size) for d, (size, held) in self._earlier.items()}
            sizes = earlier | sizes
        if len(sizes) < LEAST_FOR_MEDIAN and changes:
            norm = min(self.reader.model_norm(one.planned) for one in changes)
            return SizeLimits(SizeLimit(FIRST_RATIO * norm, 0.0), {})
        return limits_of(list(sizes.values()), factor)

    def _remember(self, incoming: Sequence[Incoming], stage: Stage) -> None:
        """Keep how large the changes were, as far as they counted."""
        limits = self._limits(incoming, stage)
        for one in incoming:
            if _is_change(one):
                self._earlier[one.planned.device] = (self._size(one), limits)
        while len(self._earlier) > KEPT_SIZES:
            del self._earlier[next(iter(self._earlier))]

    def _size(self, one: Incoming) -> ChangeSize:
        try:
            return self.reader.size(one.planned, one.update)
        except (BadUpdate, BadBlob) as err:
            raise Unusable(one, str(err)) from err

    def _weights(self, method: Method, incoming: Sequence[Incoming], limits: SizeLimits | None) -> list[float]:
        """What each update counts for under the robust choices that look at whole updates; 1 under the others."""
        weights = [1.0] * len(incoming)
        if not self.combine.weighs_updates:
            return weights
        groups: dict[object, list[tuple[int, Tensors]]] = {}
        for place, one in enumerate(incoming):
            found = self._compared(method, one, limits) if _is_change(one) else None
            if found is not None:
                groups.setdefault(found[0], []).append((place, found[1]))
        for group in groups.values():
            found_weights = robust_weights(self.combine, [change for _, change in group])
            for (place, _), weight in zip(group, found_weights, strict=True):
                weights[place] = weight
        return weights

    def _compared(self, method: Method, one: Incoming, limits: SizeLimits | None) -> tuple[Hashable, Tensors] | None:
        checked = self._checked(one, limits, 1.0)
        try:
            return method.compared(one.planned.device, checked)
        except FAULTS as err:
            raise Unusable(one, f"the method cannot take it: {err}") from err

    def _without_culprits(
        self, method: Method, incoming: Sequence[Incoming], stage: Stage, fault: Unusable
    ) -> list[Incoming]:
        """Reject what the method failed at; what remains is to be tried again."""
        if not incoming:
            raise RoundError(
                f"round {stage.number} cannot be closed even without updates ({fault}); roll the run back with "
                f"`fedwright server rollback`"
            ) from fault
        culprits = self._culprits(method, incoming, stage) if fault.culprit is None else [fault.culprit]
        for one in culprits:
            names = ", ".join(planned.device for planned in one.tasks)
            log.warning("round %d: the update of %s is left out: %s", stage.number, names, fault)
            self.tracker.reject(one.tasks, f"{names}: {fault}")
        return [one for one in incoming if one not in culprits]

    def _culprits(self, method: Method, incoming: Sequence[Incoming], stage: Stage) -> list[Incoming]:
        """Those with which the stage fails even alone; where each alone is fine, the one with the longest change."""
        found = []
        for one in incoming:
            stage.restart()
            try:
                self._attempt(method, [one], stage)
            except Unusable:
                found.append(one)
        return found or [max(incoming, key=lambda one: self._size(one).whole.norm)]


def incoming_of(planned: Planned, update: Update, plan: Mapping[str, Planned], *, weight: float = 1.0) -> Incoming:
    """An update with all tasks that it answers; plan: of the stage, by task."""
    tasks = tuple(plan[part.task] for part in update.parts) or (planned,)
    return Incoming(planned, update, tasks, weight)


def state_problem(state: MethodState) -> str | None:
    """Why a run cannot go on from a state; None when all its numbers are numbers."""
    for name, value in state.tensors.items():
        if np.issubdtype(value.dtype, np.floating) and not math.isfinite(magnitude(value)):
            return f"tensor {name} of the new model is not finite"
    return None


def _is_change(one: Incoming) -> bool:
    return one.planned.assignment.returns.weights == "delta" and one.update.tensors is not None
