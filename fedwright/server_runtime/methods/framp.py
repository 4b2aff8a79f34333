"""FRAMP: a model written for each device from a descriptor of its data, of which it gets the part that fits.

Paper: FRAMP (anonymous submission): personalised models by hypernetwork, magnitude masks and prototype alignment.
Implemented: descriptor at join, standardised over the fleet; generation for a round's devices at once; the γ d largest
entries over all tensors, or the strongest channels; prototype alignment in the device's graph; prototypes up and down
(noise or a rotation on arrival); new devices without training; union model H(mean v); ablations: no alignment
(align = 0), no personalisation, layer-wise masks, one-hot descriptors, class indicators.
Left out: the learnt projector and trained descriptors of Table 2; FIARSE's mask gradient.
Differs: the printed sign of the hypernetwork's step is ascent, this is descent. Head biases start at the target net's
initialisation. Biases and normalisation are never masked. λ weighs the mean over classes of the RMS distance of
batch-level class means. Prototypes are means over the devices that hold a class, not over all. Sizes go to devices by
the number in their id. Large targets are written in pieces by a shared head.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
from msgspec import structs

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report
from fedwright.protocol.strict import check_range
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.artifacts.structure import ModelSpec, Objective, Structure
from fedwright.server_runtime.blocks.hypernet import Form, Hypernet, Scaling, Start, Step
from fedwright.server_runtime.blocks.prototypes import Prototypes, disturbed
from fedwright.server_runtime.blocks.slicing import put, take
from fedwright.server_runtime.methods import written
from fedwright.server_runtime.methods.base import (
    Absorbed,
    Array,
    Assignment,
    Emission,
    Entry,
    Relay,
    Setting,
    Tensors,
    register,
)
from fedwright.server_runtime.methods.framp_parts import Parts, masked
from fedwright.server_runtime.methods.sliced import number_of
from fedwright.server_runtime.rounds.sampling import derive_seed

# Above this many weights they are written in pieces of CHUNK.
WHOLE, CHUNK = 500_000, 8192


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True)
class FrampParams:
    """sizes: γ. align: λ. server_rate: β. noise: the paper's a."""

    sizes: tuple[float, ...] = field(
        default=(1.0, 0.25, 0.0625, 0.015625), metadata=_help("share of the entries that a device may have")
    )
    granularity: Literal["element", "channel"] = field(
        default="element", metadata=_help("single entries (less traffic), or channels (also less memory and compute)")
    )
    layerwise: bool = field(default=False, metadata=_help("choose entries in each layer on its own"))
    align: float = field(default=0.7, metadata=_help("weight of the prototype term; 0 leaves it out"))
    personal: bool = field(default=True, metadata=_help("false writes the same model for everyone"))
    describe: Literal["features", "classes", "one_hot"] = field(
        default="features", metadata=_help("random features of the data, its classes, or only which device it is")
    )
    devices: int = field(default=128, metadata=_help("length of one-hot descriptors"))
    hidden: int = field(default=64, metadata=_help("width of the hypernetwork"))
    server_rate: float = field(default=1.0, metadata=_help("learning rate of the hypernetwork; at most 1"))
    disturb: Literal["none", "noise", "rotation"] = field(default="none", metadata=_help("what is done to prototypes"))
    noise: float = field(default=0.1, metadata=_help("standard deviation of the noise, as a share of the norm"))

    def __post_init__(self) -> None:
        """Check values."""
        if not self.sizes or not all(0 < size <= 1 for size in self.sizes):
            raise ConfigError(f"sizes is {list(self.sizes)} but needs numbers above 0 and up to 1")
        check_range("align", self.align, low=0)
        check_range("hidden", self.hidden, low=1)
        check_range("devices", self.devices, low=1)
        check_range("server_rate", self.server_rate, above=0)
        check_range("noise", self.noise, low=0)


class Note(msgspec.Struct):
    """What a plan must remember of a device's part: the hypernetwork's input, its scaling, the channels it got."""

    row: bytes
    mean: bytes
    std: bytes
    plan: dict[str, list[int]]


class Framp:
    """φ ← φ + β mean_n J_n' (M_n Δ_n), ω_n = H(v_n; φ)."""

    def __init__(self, params: FrampParams, setting: Setting) -> None:
        self._params, self._setting = params, setting
        initial = written.parameters_of(setting)
        self._parts = Parts(setting, initial, params)
        self._known, self._running = written.Known(), written.Running(setting, initial)
        self._initial, self._step = initial, Step(params.server_rate)
        self._scaling: Scaling | None = None
        self._hypernet: Hypernet | None = None
        self._made: dict[str, Tensors] = {}
        self._advanced = 0
        width = self._embedding() if params.align else 0
        self._prototypes = Prototypes.empty(setting.spec.classes, width)
        weight = params.align / (setting.spec.classes * math.sqrt(max(1, width)))
        self._objective = Objective(prototypes=weight, element_masks=params.granularity == "element")

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Take in the descriptors."""
        for device in self._known.missing(reports):
            try:
                self._known.note(device, self._described(device, reports[device]))
            except ConfigError as err:
                self._known.refuse(device, err)

    def _described(self, device: str, report: Report) -> Array:
        classes = self._setting.spec.classes
        if self._params.describe == "one_hot":
            row = np.zeros(self._params.devices, np.float32)
            row[number_of(device, self._setting.seed) % len(row)] = 1
            return row
        if self._params.describe == "classes":
            return written.indicator_of(report, classes)
        if report.data.descriptor is None:
            raise ConfigError("it sent no descriptor of its data; update its agent or use describe = 'classes'")
        row = np.asarray(report.data.descriptor, np.float32)
        usual = next(iter(self._known.rows.values()), row)
        if row.shape != usual.shape or not len(row) or not np.isfinite(row).all():
            raise ConfigError(f"its descriptor has {len(row)} numbers, not {len(usual)} finite ones; update its agent")
        return row

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """Write all models of the round at once and choose each device's part."""
        self.meet(reports)
        devices = [device for device in sorted(reports) if reports[device].trains and device in self._known.rows]
        if not devices:
            return {}
        if self._advanced == 0:
            self._scaling = Scaling.of(np.stack([self._known.rows[device] for device in sorted(self._known.rows)]))
        assert self._scaling is not None
        rows = np.stack([self._scaling.apply(self._known.rows[device]) for device in devices])
        hypernet = self._net(rows.shape[1])
        if round_number == 1:
            hypernet.check_step(rows, self._step)
        self._made = dict(zip(devices, hypernet.generate(rows), strict=True))
        return {device: self._assignment(device, row, round_number) for device, row in zip(devices, rows, strict=True)}

    def _assignment(self, device: str, row: Array, round_number: int) -> Assignment:
        assert self._scaling is not None
        plan = self._parts.channels(device, self._made[device])
        scaling = (self._scaling.mean.tobytes(), self._scaling.std.tobytes())
        note = Note(row.tobytes(), *scaling, {group: kept.tolist() for group, kept in plan.items()})
        masked = self._objective.element_masks and self._parts.share(device) < 1
        returns = structs.replace(self._setting.returns, prototypes=self._params.align > 0, masked=masked)
        return Assignment(
            Structure(self._parts.spec(plan), self._objective, self._setting.optimizer),
            written.recipe_for(self._setting, round_number, device),
            returns,
            tuple(msgspec.msgpack.encode(note)),
        )

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The device's part of its model, and the prototypes."""
        weights = {**self._made[device], **self._running.values}
        sides = {}
        if self._params.align:
            sides = {"prototypes": self._prototypes.values, "prototype_owned": self._prototypes.known}
        if not self._objective.element_masks:
            return Emission(take(weights, self._parts.axes, _plan(_note(assignment))), sides)
        share = self._parts.share(device)
        masks = self._parts.masks(weights, share) if share < 1 else {}
        return Emission(masked(weights, masks), sides, masks=masks)

    def absorb(self, device: str, reply: Absorbed) -> Relay | None:
        """Remember the change at its place in the full model, and take in the prototypes."""
        note, tensors = _note(reply.assignment), reply.tensors
        row = np.frombuffer(note.row, np.float32)
        if self._advanced == 0:
            self._scaling = Scaling(np.frombuffer(note.mean, np.float32), np.frombuffer(note.std, np.float32))
        change = {name: tensors[name] for name in self._initial}
        if note.plan:
            nothing = {name: np.zeros_like(value) for name, value in self._initial.items()}
            change = put(nothing, change, self._parts.axes, _plan(note))
        self._net(len(row)).add(row, change, reply.weight)
        self._running.add(tensors, reply.stats.samples * reply.weight)
        if "prototypes" in tensors:
            rng = np.random.default_rng(derive_seed(self._setting.seed, "prototypes", self._advanced, device))
            shared = disturbed(tensors["prototypes"], self._params.disturb, scale=self._params.noise, rng=rng)
            self._prototypes.add(shared, tensors["prototype_counts"])
        return None

    def advance(self) -> dict[str, float]:
        """Step through the hypernetwork; refresh the prototypes."""
        norm = 0.0 if self._hypernet is None else self._hypernet.learn(self._step)
        moved = self._prototypes.advance() if self._params.align else 0.0
        self._running.advance()
        self._made = {}
        self._advanced += 1
        return {"hypernet_gradient": norm, "prototypes_moved": moved}

    def personal(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The part of its model that fits the device, without dead channels; for no device, the whole union model."""
        weights, row = {**self._initial, **self._running.values}, self._known.rows.get(device)
        if self._scaling is not None and self._known.rows:
            known = [self._known.rows[name] for name in sorted(self._known.rows)]
            scaled = self._scaling.apply(np.mean(known, axis=0) if row is None else row)
            weights |= self._net(len(scaled)).generate(scaled[None])[0]
        if row is None:
            return self._setting.spec, weights
        plan = self._parts.channels(device, weights)
        if self._objective.element_masks and (share := self._parts.share(device)) < 1:
            weights = masked(weights, self._parts.masks(weights, share))
            plan = self._parts.live(weights)
        return self._parts.spec(plan), take(weights, self._parts.axes, plan) if plan else weights

    def state(self) -> Tensors:
        """Hypernetwork, prototypes, descriptors and their scaling, running statistics."""
        state = {**self._known.state(), **self._running.state(), "advanced": np.array(self._advanced, np.int64)}
        state |= {"prototypes": self._prototypes.values, "prototypes_known": self._prototypes.known}
        if self._scaling is not None:
            state |= {"scaling/mean": self._scaling.mean, "scaling/std": self._scaling.std}
        return state if self._hypernet is None else state | written.hypernet_state(self._hypernet)

    def restore(self, state: Tensors) -> None:
        """Continue from a saved state."""
        self._known.restore(state)
        self._running.restore(state)
        self._advanced = int(state["advanced"])
        self._prototypes = Prototypes(state["prototypes"], state["prototypes_known"])
        self._made, self._scaling, self._hypernet = {}, None, None
        if "scaling/mean" in state:
            self._scaling = Scaling(state["scaling/mean"], state["scaling/std"])
            if any(name.startswith(written.HYPERNET) for name in state):
                written.restore_hypernet(self._net(len(self._scaling.mean)), state)

    def _net(self, inputs: int) -> Hypernet:
        """The hypernetwork, made when the length of a descriptor is known."""
        if self._hypernet is None:
            size = sum(value.size for value in self._initial.values())
            chunk = CHUNK if size > WHOLE else None
            form = Form(inputs, self._params.hidden, normalise=True, chunk=chunk, shared=not self._params.personal)
            seed = derive_seed(self._setting.seed, "hypernetwork")
            self._hypernet = Hypernet(form, Start(self._initial, {}), seed=seed, device=self._setting.device)
        return self._hypernet

    def _embedding(self) -> int:
        structure = Structure(self._setting.spec)
        ask = self._setting.manifest or (lambda asked: Builder().build(asked).manifest)
        return ask(structure).embedding_size


def _note(assignment: Assignment) -> Note:
    return msgspec.msgpack.decode(bytes(assignment.marks), type=Note)


def _plan(note: Note) -> dict[str, Array]:
    return {group: np.array(kept, np.int64) for group, kept in note.plan.items()}


register(Entry("framp", "a model written for each device, cut to the part that fits", FrampParams, Framp, "cnn-gn"))
