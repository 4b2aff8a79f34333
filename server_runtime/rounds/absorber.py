"""Folds a stage's updates into a method; those at which it fails are left out for good and the stage is done again.

A method may have changed before it failed, so it goes back to what is durable, as a resumed server does: after a
rejection the running server and one that was killed right then go on from the same place.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedwright.protocol.errors import BadBlob, BadUpdate, ConfigError, DataError, ProtocolError, RoundError
from fedwright.protocol.messages import Update
from fedwright.server_runtime.blocks.robust import Combine
from fedwright.server_runtime.blocks.robust_weights import robust_weights
from fedwright.server_runtime.fleet.admission import clip_norm, magnitude
from fedwright.server_runtime.methods.base import CheckedUpdate, Method, MethodState, Relay
from fedwright.server_runtime.rounds.pooled_tasks import checked_update
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
# Fewer updates have no median that one of them could not move.
LEAST_FOR_MEDIAN = 3


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
    """The acts around a stage. restart: put the method where it stood before the stage. finish: close the round."""

    number: int
    restart: Callable[[], None]
    finish: Callable[[], dict[str, float]]


class Unusable(Exception):
    """A method failed at one update, or (None) nobody knows at which."""

    def __init__(self, culprit: Incoming | None, reason: str) -> None:
        super().__init__(reason)
        self.culprit = culprit


@dataclass
class Absorber:
    """norm_factor: no change is longer than this many times the median of its stage. combine: who counts how much."""

    tracker: TaskTracker
    reader: UpdateReader
    norm_factor: float | None = None
    combine: Combine = field(default_factory=Combine)

    def absorb(self, method: Method, incoming: Sequence[Incoming], stage: Stage) -> Absorbed:
        """Fold in all that can be; RoundError when the method fails without any update."""
        left = list(incoming)
        while True:
            try:
                done = self._attempt(method, left, stage)
            except Unusable as err:
                left = self._without_culprits(method, left, stage, err)
                stage.restart()
            else:
                self.reader.forget(planned.task.task for one in incoming for planned in one.tasks)
                refs = [one.update.tensors for one in incoming]
                return replace(done, tensors={ref.sha256 for ref in refs if ref is not None})

    def _attempt(self, method: Method, incoming: Sequence[Incoming], stage: Stage) -> Absorbed:
        """One try from the start of the stage to its end; Unusable when it fails."""
        relays = []
        limit, weights = self._norm_limit(incoming), self._weights(incoming)
        with np.errstate(all="ignore"):
            for one, weight in zip(incoming, weights, strict=True):
                relay = self._absorb_one(method, one, limit, weight) if weight > 0 else None
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

    def _absorb_one(self, method: Method, one: Incoming, limit: float | None, weight: float) -> Relay | None:
        try:
            return method.absorb(one.planned.device, self._checked(one, limit, weight))
        except FAULTS as err:
            raise Unusable(one, f"the method cannot take it: {err}") from err

    def _checked(self, one: Incoming, limit: float | None, weight: float) -> CheckedUpdate:
        try:
            values = self.reader.take(one.planned, one.update)
        except (BadUpdate, BadBlob) as err:
            raise Unusable(one, str(err)) from err
        values = clip_norm(values, limit) if _is_change(one) else values
        devices = [planned.device for planned in one.tasks]
        return checked_update(one.planned, one.update, values, weight=one.weight * weight, devices=devices)

    def _norm_limit(self, incoming: Sequence[Incoming]) -> float | None:
        """norm_factor times the lower median of the norms of all changes; None where that says nothing."""
        changes = [one for one in incoming if _is_change(one)]
        factor = 1.0 if self.combine.kind == "norm_bound" else self.norm_factor
        if factor is None or len(changes) < LEAST_FOR_MEDIAN:
            return None
        norms = sorted(self._norm(one) for one in changes)
        median = norms[(len(norms) - 1) // 2]
        return factor * median or None

    def _norm(self, one: Incoming) -> float:
        try:
            return self.reader.norm(one.planned, one.update)
        except (BadUpdate, BadBlob) as err:
            raise Unusable(one, str(err)) from err

    def _weights(self, incoming: Sequence[Incoming]) -> list[float]:
        """What each update counts for under the robust choices that look at whole updates; 1 under the others."""
        weights = [1.0] * len(incoming)
        if not self.combine.weighs_updates:
            return weights
        alike: dict[object, list[int]] = {}
        for place, one in enumerate(incoming):
            if _is_change(one):
                alike.setdefault((one.planned.assignment.structure, one.planned.assignment.marks), []).append(place)
        for places in alike.values():
            changes = [self._checked(incoming[place], None, 1.0).tensors for place in places]
            for place, weight in zip(places, robust_weights(self.combine, changes), strict=True):
                weights[place] = weight
        return weights

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
        return found or [max(incoming, key=self._norm)]


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
