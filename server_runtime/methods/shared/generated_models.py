"""What methods share whose server writes a device's weights from what the device says about its data."""

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.classifier import classifier_names
from fedwright.server_runtime.blocks.alike import groups_of, nearest
from fedwright.server_runtime.blocks.hypernet import Hypernet
from fedwright.server_runtime.blocks.robust import Mean, make_mean
from fedwright.server_runtime.blocks.slicing import Axes, Plan
from fedwright.server_runtime.engine.spread import spread
from fedwright.server_runtime.methods.base import Array, MethodState, Setting, Tensors
from fedwright.server_runtime.spec import ModelSpec

log = logging.getLogger(__name__)

# Far below any logit, and far from what float32 cannot hold.
OUT_OF_REACH = 1e4
KNOWN, RUNNING, HYPERNET = "known/", "running/", "hypernet/"


def hypernet_state(hypernet: Hypernet | None) -> MethodState:
    """A hypernetwork's state; empty when there is none yet."""
    return MethodState({} if hypernet is None else {HYPERNET + n: value for n, value in hypernet.state().items()})


def restore_hypernet(state: MethodState, make: Callable[[], Hypernet]) -> None:
    """Continue from `hypernet_state`; `make` gives the hypernetwork, which is not asked for when there was none."""
    found = state.below(HYPERNET)
    if found:
        make().restore(found)


def indicator_of(report: Report, classes: int) -> Array:
    """1 for every class that the device holds, else 0; a device that does not say holds all.

    A device that knows fewer classes than the model has lacks the others.
    """
    counts = report.data.class_counts
    if counts is None:
        return np.ones(classes, np.float32)
    beyond = [label for label, count in enumerate(counts) if count and label >= classes]
    if beyond:
        raise ConfigError(
            f"it holds class {beyond[0]} but the model has only {classes} classes; mend its labels or set model.classes"
        )
    found = np.zeros(classes, np.float32)
    found[: len(counts)] = np.asarray(counts[:classes]) > 0
    if not found.any():
        raise ConfigError("it holds no class at all, so no model can be made for it; give it labelled data")
    return found


def unit(indicator: Array) -> Array:
    """r / ||r||, so that the size of what a hypernetwork reads does not depend on the number of classes."""
    scaled: Array = indicator / np.sqrt(indicator.sum())
    return scaled


def parameters_of(setting: Setting) -> Tensors:
    """The initial weights without running statistics."""
    names = [name for name, _ in zoo.create(setting.spec, seed=0).named_parameters()]
    return {name: setting.initial[name] for name in names}


def bits(row: Array) -> tuple[int, ...]:
    """Numbers exactly, in the form of a plan's marks."""
    return tuple(np.asarray(row, np.float32).view(np.uint32).tolist())


def floats(marks: tuple[int, ...]) -> Array:
    """The numbers that `bits` was given."""
    return np.array(marks, np.uint32).view(np.float32)


class RunningStatistics:
    """Running statistics, which no hypernetwork writes: averaged as in FedAvg over the devices that hold them."""

    def __init__(self, setting: Setting, generated: Mapping[str, Array], axes: Axes | None = None) -> None:
        """axes: of the whole model, where devices may hold some of its channels only."""
        self._combine, self._axes = setting.combine, axes or {}
        self.values = {name: value for name, value in setting.initial.items() if name not in generated}
        self._change = self._new_mean()

    def add(self, change: Mapping[str, Array], weight: float, plan: Plan | None = None) -> None:
        """Fold in one device's change; plan: the channels that it holds."""
        self._change.add({name: change[name] for name in self.values}, plan or {}, weight)

    def advance(self) -> None:
        """Apply the mean change."""
        change = self._change.result()
        self.values = {name: (value + change[name]).astype(value.dtype) for name, value in self.values.items()}
        self._change = self._new_mean()

    def _new_mean(self) -> Mean:
        axes = {name: self._axes.get(name, (None,) * value.ndim) for name, value in self.values.items()}
        return make_mean(self._combine, {name: np.zeros_like(value) for name, value in self.values.items()}, axes)

    def state(self) -> MethodState:
        """To be saved with the method."""
        return MethodState({RUNNING + name: value for name, value in self.values.items()})

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self.values = {name: state.tensors[RUNNING + name] for name in self.values}
        self._change = self._new_mean()


def written_for(setting: Setting, hypernet: Hypernet, rows: Array, *, alike: bool) -> list[Tensors]:
    """What a hypernetwork writes for each row [n, inputs]; alike: equal rows get the same dictionary."""
    if not alike:
        return _written(setting, hypernet, rows)
    places = [row.tobytes() for row in rows]
    distinct = dict(zip(places, rows, strict=True))
    made = dict(zip(distinct, _written(setting, hypernet, np.stack(list(distinct.values()))), strict=True))
    return [made[place] for place in places]


def _written(setting: Setting, hypernet: Hypernet, rows: Array) -> list[Tensors]:
    shards = hypernet.shards(rows)
    if len(shards) == 1 or setting.device != "cpu":
        return hypernet.generate(rows)
    return [one for made in spread(setting.engine, _shard, shards, hypernet.writer()) for one in made]


def _shard(rows: Array, hypernet: Hypernet) -> list[Tensors]:
    return hypernet.generate(rows)


def as_union(rows: Sequence[Array]) -> Array:
    """The indicator of the classes that any of several devices holds, as `unit` gives it."""
    return unit(np.max(np.stack(rows) > 0, axis=0).astype(np.float32))


def as_mean(rows: Sequence[Array]) -> Array:
    """The mean description of several devices."""
    return np.asarray(np.mean(rows, axis=0, dtype=np.float64), np.float32)


class Descriptions:
    """What each device said of itself when it came; the first word counts, so that its model does not jump.

    alike: so many devices or more have one description, which `joined` makes of their own; who comes alone later gets
    the nearest. 0: each has its own.
    """

    def __init__(self, alike: int = 0, joined: Callable[[Sequence[Array]], Array] = as_mean) -> None:
        self.rows: dict[str, Array] = {}
        self._alike, self._joined = alike, joined
        self._warned: set[str] = set()

    def note(self, device: str, row: Array) -> None:
        """Remember a description unless there is one."""
        self.rows.setdefault(device, row)

    def refuse(self, device: str, problem: Exception) -> None:
        """Leave a device out and say why, once."""
        if device not in self._warned:
            self._warned.add(device)
            log.warning("device %s gets the common model and does not train: %s", device, problem)

    def meet(self, reports: Mapping[str, Report], describe: Callable[[str], Array]) -> None:
        """Remember the description of every device that is new; one that has none is left out."""
        new = self.missing(reports)
        for device in new:
            try:
                self.note(device, describe(device))
            except ConfigError as err:
                self.refuse(device, err)
        self.share(new)

    def share(self, new: Sequence[str]) -> None:
        """Where descriptions are shared, give those who are new the one of a group."""
        own = {device: self.rows[device] for device in new if device in self.rows}
        if not self._alike or not own:
            return
        known = [row for device, row in sorted(self.rows.items()) if device not in own]
        if len(own) < self._alike and known:
            self.rows |= {device: nearest(row, known) for device, row in own.items()}
            return
        for group in groups_of(own, self._alike):
            self.rows |= dict.fromkeys(group, self._joined([own[device] for device in group]))

    def missing(self, reports: Mapping[str, Report]) -> list[str]:
        """Devices that are not known yet, in the order of their ids."""
        return [device for device in sorted(reports) if device not in self.rows]

    def state(self) -> MethodState:
        """To be saved with the method."""
        return MethodState({KNOWN + device: row for device, row in self.rows.items()})

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self.rows = state.below(KNOWN)


def mask_logits(spec: ModelSpec, weights: Mapping[str, Array], owned: Array) -> Tensors:
    """The classifier's bias with classes that a device lacks put out of reach; spec: of the model without adapters."""
    names = [n for n in classifier_names(spec, weights) if weights[n].ndim == 1]
    if not names:
        raise ConfigError("the model's last layer has no bias, so classes cannot be masked; choose another model")
    return {name: np.where(owned > 0, weights[name], np.float32(-OUT_OF_REACH)) for name in names}
