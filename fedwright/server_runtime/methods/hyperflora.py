"""HyperFLoRA: a hypernetwork writes low-rank adapters for a frozen base from the classes that a device holds.

Paper: HyperFLoRA: Federated Learning with Instantaneous Personalization (SDM 2024).
Implemented: pre-training by FedAvg; frozen base, fetched once; adapters of rank q on the model's adapted matrices and
its head; class indicators; standard rounds; client pairs that pass one adapter to and fro through the server (E
exchanges); bystanders, which get a merged model and never train (declared, or short of memory); the sequential and the
+head variant; logits masked to owned classes as an option; adapters of a smaller rank for devices without the budget
for q (the first components of what was written; the others learn from other devices).
Left out: choosing the pre-trained checkpoint by validation accuracy; models with running statistics; adapters on LSTM
matrices.
Differs: second factors begin at zero, so that the base is not disturbed at the start; no weight decay by default. A
pair uses half of the union of its classes, without doubles. A pair whose first device does not answer is dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from msgspec import structs

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report
from fedwright.protocol.strict import check_range
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.artifacts.structure import ModelSpec, Structure
from fedwright.server_runtime.blocks import lora
from fedwright.server_runtime.blocks.hypernet import Form, Hypernet, Start, Step
from fedwright.server_runtime.blocks.ranks import cut_rank, pad_rank
from fedwright.server_runtime.blocks.robust import Mean, make_mean
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
from fedwright.server_runtime.methods.baselines.heterofl import classifier_names
from fedwright.server_runtime.methods.fitting import Fit, Left, divided, largest_fitting
from fedwright.server_runtime.rounds.sampling import derive_seed
from fedwright.server_runtime.zoo import adapted

ADVANCED, BASE, PAIR = "advanced", "base/", "pair/"


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True)
class HyperFLoRAParams:
    """rank: q. exchanges: E. server_rate, momentum, weight_decay, clip_norm: the hypernetwork's optimizer."""

    pretrain_rounds: int = field(default=20, metadata=_help("rounds of FedAvg before the base is frozen"))
    rank: int = field(default=1, metadata=_help("rank of the adapters"))
    hidden: int = field(default=128, metadata=_help("width of the hypernetwork"))
    layers: int = field(default=3, metadata=_help("linear layers of its trunk"))
    server_rate: float = field(default=0.01, metadata=_help("learning rate of the hypernetwork"))
    momentum: float = field(default=0.9, metadata=_help("momentum of its optimizer"))
    weight_decay: float = field(default=0.0, metadata=_help("its weight decay; the paper has 0.001"))
    clip_norm: float = field(default=50.0, metadata=_help("largest norm of its gradient"))
    pairs: bool = field(default=True, metadata=_help("also let pairs of devices train an adapter in turn"))
    exchanges: int = field(default=3, metadata=_help("how often each of a pair has its turn"))
    sequential: bool = field(default=False, metadata=_help("follow each change on its own instead of their mean"))
    head: bool = field(default=False, metadata=_help("write the classification layer too"))
    mask_logits: bool = field(default=False, metadata=_help("let models give only classes that the device holds"))

    def __post_init__(self) -> None:
        """Check values."""
        for key in ("rank", "hidden", "layers", "exchanges"):
            check_range(key, getattr(self, key), low=1)
        check_range("pretrain_rounds", self.pretrain_rounds, low=0)
        check_range("server_rate", self.server_rate, above=0)
        check_range("clip_norm", self.clip_norm, above=0)
        check_range("weight_decay", self.weight_decay, low=0)
        check_range("momentum", self.momentum, low=0, high=0.999)

    def step(self) -> Step:
        """The hypernetwork's optimizer."""
        return Step(self.server_rate, self.momentum, self.weight_decay, self.clip_norm)


class Note(msgspec.Struct):
    """What a plan must remember: the classes an adapter was written for; of a pair, its turns and whose it is.

    hop: -1 for a device's own adapter. rank: of the adapter that is sent; of a pair, what both can do. Taken from the
    method's own where it is 0.
    """

    round: int
    classes: list[int] = []
    turns: list[str] = []
    drawn: list[int] = []
    hop: int = -1
    pretrain: bool = False
    rank: int = 0
    pair_rank: int = 0


class HyperFLoRA:
    """φ ← φ − γ mean J' (ρ_init − ρ_fin) over devices and pairs, ρ = h(r; φ), r the classes."""

    def __init__(self, params: HyperFLoRAParams, setting: Setting) -> None:
        self._params, self._setting = params, setting
        self._spec = adapted.with_rank(setting.spec, params.rank)
        module = zoo.create(self._spec, seed=derive_seed(setting.seed, "adapters"))
        names = zoo.adapter_names(module)
        if not names or len(initial_weights(module)) != len(list(module.parameters())):
            raise ConfigError(
                f"model {setting.spec.model} has no adapters, or running statistics beside them; "
                f"choose cnn-lora, lenet-lora, vit-lora or mlp-lora"
            )
        initial = initial_weights(module)
        self._adapters = {name: initial[name] for name in names}
        self._base: Tensors = {name: setting.initial[name] for name in initial if name not in names}
        head = classifier_names(self._base, setting.spec.classes) if params.head else []
        self._written = (*names, *head)
        whole = adapted.with_rank(setting.spec, 1) == self._spec
        self._ranks = (params.rank,) if whole else tuple(range(1, params.rank + 1))
        self._shapes = {name: {**self._adapters, **self._base}[name].shape for name in self._written}
        self._frozen: Tensors = {}
        self._known = written.Known()
        self._hypernet: Hypernet | None = None
        self._made: dict[str, Tensors] = {}
        self._passed: dict[str, Array] = {}
        self._left = Left()
        self._advanced = 0
        self._change = self._new_mean()

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Take in which classes every device holds."""
        for device in self._known.missing(reports):
            try:
                self._known.note(device, written.indicator_of(reports[device], self._setting.spec.classes))
            except ConfigError as err:
                self._known.refuse(device, err)

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """The base for everyone, then adapters of the rank that fits; those who cannot train are bystanders."""
        self.meet(reports)
        able = {device: reports[device] for device in sorted(reports) if device in self._known.rows}
        pretrain = self._advanced < self._params.pretrain_rounds
        fitting = {d: fit for d, report in able.items() if (fit := self._fitting(d, report, round_number, pretrain))}
        devices = list(fitting)
        if pretrain or not devices:
            return {device: fit.assignment for device, fit in fitting.items()}
        rows = np.stack([self._known.rows[device] for device in devices])
        self._net().check_step(rows, self._params.step())
        self._made = dict(zip(devices, self._net().generate(rows), strict=True))
        owned = {device: np.flatnonzero(self._known.rows[device]).tolist() for device in devices}
        notes = {device: Note(round_number, owned[device], rank=fit.size) for device, fit in fitting.items()}
        rng = np.random.default_rng(derive_seed(self._setting.seed, "pairs", round_number))
        for pair in lora.pair_up(owned, self._params.exchanges, rng) if self._params.pairs else ():
            lead = pair.turns[0]
            shared = min(fitting[device].size for device in pair.turns)
            notes[lead] = structs.replace(
                notes[lead], turns=list(pair.turns), drawn=list(pair.classes), pair_rank=shared
            )
        made = {device: self._assignment(device, note) for device, note in notes.items()}
        return {device: replace(a, recipe=fitting[device].assignment.recipe) for device, a in made.items()}

    def _fitting(self, device: str, report: Report, round_number: int, pretrain: bool) -> Fit[int] | None:
        """The largest rank, and perhaps a smaller batch, within the device's budget; a pair's turns count too."""
        if not report.trains:
            return None
        tasks = 1 + (self._params.exchanges if self._params.pairs and not pretrain else 0)
        fit = largest_fitting(
            self._setting,
            device,
            report=divided(self._setting, report, tasks),
            sizes=(self._params.rank,) if pretrain else self._ranks,
            make=lambda rank: self._assignment(device, Note(round_number, pretrain=pretrain, rank=rank)),
        )
        if fit is None:
            self._left.out(device, setting=self._setting, report=report)
        else:
            self._left.back(device)
        return fit

    def _assignment(self, device: str, note: Note) -> Assignment:
        recipe = written.recipe_for(self._setting, note.round, device)
        if note.hop >= 0:
            seed = derive_seed(recipe.seed, note.hop)
            recipe = structs.replace(recipe, seed=seed, epochs=1, classes=note.drawn)
        returns = self._setting.returns
        return Assignment(self._structure(note), recipe, returns, tuple(msgspec.msgpack.encode(note)))

    def _structure(self, note: Note) -> Structure:
        trainable = tuple(self._base) if note.pretrain else self._written
        spec = adapted.with_rank(self._setting.spec, note.rank or self._params.rank)
        return Structure(spec, optimizer=self._setting.optimizer, trainable=trainable)

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The base while it is trained, then an adapter with the base beside it."""
        note = _note(assignment)
        if note.pretrain:
            return Emission(self._base, frozen=self._adapters)
        self._net()
        if note.hop >= 0:
            passed = lora.unflatten(self._shapes, self._passed[note.turns[0]][1])
            return Emission(cut_rank(passed, note.rank), frozen=self._frozen)
        return Emission(cut_rank(self._made[device], note.rank), frozen=self._frozen)

    def absorb(self, device: str, reply: Absorbed) -> Relay | None:
        """Remember a change; a pair's adapter goes on to whoever has the next turn."""
        note = _note(reply.assignment)
        if note.pretrain:
            if self._hypernet is None:
                self._change.add(reply.tensors, {}, reply.stats.samples * reply.weight)
            return None
        change = pad_rank(reply.tensors, self._params.rank)
        if note.hop < 0:
            self._net().add(self._indicator(note.classes), change, reply.weight)
            if not note.turns:
                return None
            start = lora.flatten(self._shapes, self._net().generate(self._indicator(note.drawn)[None])[0])
            self._passed[note.turns[0]] = np.stack([start, start])
        else:
            start, end = self._passed.pop(note.turns[0])
            end = end + lora.flatten(self._shapes, change)
            if note.hop + 1 == len(note.turns):
                self._net().add(self._indicator(note.drawn), lora.unflatten(self._shapes, end - start), reply.weight)
                return None
            self._passed[note.turns[0]] = np.stack([start, end])
        following = structs.replace(note, hop=note.hop + 1, rank=note.pair_rank)
        target = note.turns[following.hop]
        return Relay(target, self._assignment(target, following))

    def advance(self) -> dict[str, float]:
        """A FedAvg step of the base, or a step of the hypernetwork."""
        norm = 0.0
        if self._hypernet is None:
            change = self._change.result()
            self._base = {name: (value + change[name]).astype(value.dtype) for name, value in self._base.items()}
            self._change = self._new_mean()
        else:
            norm = self._hypernet.learn(self._params.step())
        self._made, self._passed = {}, {}
        self._advanced += 1
        return {"hypernet_gradient": norm}

    def personal(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The base with the adapter for the device's classes merged; without classes, the base."""
        row = self._known.rows.get(device)
        weights = {**self._base, **self._adapters}
        if row is not None and self._advanced >= self._params.pretrain_rounds:
            weights |= self._net().generate(row[None])[0]
        if row is not None and self._params.mask_logits:
            weights |= written.mask_logits(weights, row)
        merged, plain = lora.merge(weights), adapted.without_adapters(self._spec)
        if plain is not None:
            return plain, merged
        return self._spec, merged | {name: np.zeros_like(value) for name, value in self._adapters.items()}

    def state(self) -> Tensors:
        """The base, the classes of devices, the hypernetwork, and adapters that are with pairs."""
        state = {ADVANCED: np.array(self._advanced, np.int64), **self._known.state()}
        state |= {BASE + name: value for name, value in self._base.items()}
        state |= {PAIR + lead: value.copy() for lead, value in self._passed.items()}
        return state if self._hypernet is None else state | written.hypernet_state(self._hypernet)

    def restore(self, state: Tensors) -> None:
        """Continue from a saved state."""
        self._advanced = int(state[ADVANCED])
        self._known.restore(state)
        self._base = {name: state[BASE + name] for name in self._base}
        self._passed = {n.removeprefix(PAIR): value.copy() for n, value in state.items() if n.startswith(PAIR)}
        self._made, self._hypernet, self._change = {}, None, self._new_mean()
        if any(name.startswith(written.HYPERNET) for name in state):
            written.restore_hypernet(self._net(), state)

    def _net(self) -> Hypernet:
        """The hypernetwork, made when the base is frozen: a +head variant begins with its head."""
        if self._hypernet is None:
            params, whole = self._params, {**self._base, **self._adapters}
            begin = {n: np.zeros_like(whole[n]) if n.endswith(lora.UP) else whole[n] for n in self._written}
            start = Start(begin, lora.head_spreads(self._written, params.hidden))
            form = Form(self._setting.spec.classes, params.hidden, params.layers, sequential=params.sequential)
            seed = derive_seed(self._setting.seed, "hypernetwork")
            self._hypernet = Hypernet(form, start, seed=seed, device=self._setting.device)
            self._frozen = {name: value for name, value in self._base.items() if name not in self._written}
        return self._hypernet

    def _indicator(self, classes: list[int]) -> Array:
        row = np.zeros(self._setting.spec.classes, np.float32)
        row[classes] = 1
        return row

    def _new_mean(self) -> Mean:
        nothing = {name: np.zeros_like(value) for name, value in self._base.items()}
        return make_mean(self._setting.combine, nothing, {name: (None,) * v.ndim for name, v in nothing.items()})


def _note(assignment: Assignment) -> Note:
    return msgspec.msgpack.decode(bytes(assignment.marks), type=Note)


register(
    Entry("hyperflora", "adapters written from a device's classes", HyperFLoRAParams, HyperFLoRA, model="cnn-lora")
)
