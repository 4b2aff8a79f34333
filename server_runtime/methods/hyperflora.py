"""HyperFLoRA: a hypernetwork writes low-rank adapters for a frozen base from the classes that a device holds.

Paper: HyperFLoRA: Federated Learning with Instantaneous Personalization (SDM 2024).
Implemented: pre-training by FedAvg, or a base from a file; frozen base, fetched once; adapters of rank q on the model's
adapted matrices and its head, or in any layers of any model that `targets` names (linear, convolution, attention,
LSTM); class indicators; standard rounds; client pairs that pass one adapter to and fro through the server (E
exchanges); bystanders, which get a merged model and never train (declared, or short of memory); the sequential and the
+head variant; logits masked to owned classes as an option; adapters of a smaller rank for devices without the budget
for q (the first components of what was written; the others learn from other devices); the base and the hypernetwork
as they did best on all devices' held-out rows, every `choose_every` rounds.
Left out: that by default; `choose_every` is 0 and the last state counts, because measuring costs every device a model.
Differs: second factors begin at zero, so that the base is not disturbed at the start. The trunk keeps the size of what
runs through it and reads r / ||r||, at five times the paper's rate and without weight decay: with torch's start
descriptions of unlike devices come out alike, and what one needs is learnt by all (thousands of rounds would undo it).
A pair uses half of the union of its classes, without doubles. A pair whose first device does not answer is dropped.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Literal

import msgspec
import numpy as np
from msgspec import structs

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report, Returns
from fedwright.server_runtime.artifacts.classifier import classifier_matrix
from fedwright.server_runtime.blocks import lora
from fedwright.server_runtime.blocks.hypernet import Hypernet, HypernetForm, HypernetStart
from fedwright.server_runtime.blocks.ranks import cut_rank, pad_rank
from fedwright.server_runtime.methods.base import (
    Array,
    Assignment,
    CheckedUpdate,
    Emission,
    Method,
    MethodState,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.params.generated_models import HyperFLoRAParams
from fedwright.server_runtime.methods.shared import generated_models
from fedwright.server_runtime.methods.shared.budget_fit import BudgetFit, LeftOut, divided, largest_fitting
from fedwright.server_runtime.methods.shared.checkpoints import Checkpoints
from fedwright.server_runtime.methods.shared.frozen_base import FrozenBase
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec
from fedwright.server_runtime.zoo import adapter_models

PAIR = "pair/"
# What a device must be able to train at to measure a model.
EVALUATION_BATCH = 8


class TurnNote(msgspec.Struct):
    """What a plan must remember: the classes an adapter was written for; of a pair, its turns and whose it is.

    hop: -1 for a device's own adapter. measure: it is tried on held-out rows and not trained. rank: of the adapter that
    is sent; of a pair, what both can do. Taken from the method's own where it is 0.
    """

    round: int
    classes: list[int] = []
    turns: list[str] = []
    drawn: list[int] = []
    hop: int = -1
    pretrain: bool = False
    measure: bool = False
    rank: int = 0
    pair_rank: int = 0


class HyperFLoRA(Method):
    """φ ← φ − γ mean J' (ρ_init − ρ_fin) over devices and pairs, ρ = h(r; φ), r the classes."""

    def __init__(self, params: HyperFLoRAParams, setting: Setting) -> None:
        self._params, self._setting = params, setting
        self._base = base = FrozenBase(params, setting)
        head = self._head_names() if params.head else []
        # A head that is written whole has no use for an adapter of its own.
        self._written = (*(n for n in base.adapters if lora.adapted_matrix(n) not in head), *head)
        self._shapes = {name: {**base.adapters, **base.weights}[name].shape for name in self._written}
        # By rank: only the unused adapter of a head that is written whole differs.
        self._frozen: dict[int, Tensors] = {}
        self._known = generated_models.Descriptions(params.alike, generated_models.as_union)
        self._hypernet: Hypernet | None = None
        self._made: dict[str, Tensors] = {}
        # By the first device of a pair: its adapter as it was generated, and as it is now.
        self._passed: dict[str, Array] = {}
        # How many adapters came back in this round, own ones and pairs'.
        self._taken = 0
        self._left = LeftOut()
        self._checkpoints = Checkpoints(params.choose_every)
        self._here: list[str] = []
        # The round whose updates are being folded in.
        self._round = 0

    def _head_names(self) -> list[str]:
        """The weights of the layer that makes the logits."""
        matrix = classifier_matrix(self._plain_spec())
        if matrix is None:
            raise ConfigError(f"no layer of model {self._setting.spec.model} makes its logits alone; set head = false")
        layer = matrix.rpartition(".")[0]
        return [name for name in self._base.weights if name.rpartition(".")[0] == layer]

    def _plain_spec(self) -> ModelSpec:
        """The model without adapters."""
        return adapter_models.without_adapters(self._base.spec) or self._setting.spec

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Take in which classes every device holds, and who is here to measure."""
        self._describe(reports)
        if self._params.choose_every:
            self._here = sorted(d for d, report in reports.items() if report.trains and d in self._known.rows)

    def _describe(self, reports: Mapping[str, Report]) -> None:
        classes = self._setting.spec.classes
        self._known.meet(
            reports, lambda device: generated_models.unit(generated_models.indicator_of(reports[device], classes))
        )

    def assign(self, reports: Mapping[str, Report], round_number: int) -> dict[str, Assignment]:
        """The base for everyone, then adapters of the rank that fits; those who cannot train are bystanders."""
        self._describe(reports)
        able = {device: reports[device] for device in sorted(reports) if device in self._known.rows}
        fitting = {d: fit for d, report in able.items() if (fit := self._fitting(d, report, round_number))}
        if not self._base.frozen or not fitting:
            return {device: fit.assignment for device, fit in fitting.items()}
        rows = np.stack([self._known.rows[device] for device in fitting])
        self._net().check_step(rows, self._params.step())
        made = generated_models.written_for(self._setting, self._net(), rows, alike=bool(self._params.alike))
        self._made = dict(zip(fitting, made, strict=True))
        notes = self._notes({device: fit.size for device, fit in fitting.items()}, round_number)
        asked = {device: self._assignment(device, note) for device, note in notes.items()}
        return {device: replace(a, recipe=fitting[device].assignment.recipe) for device, a in asked.items()}

    def _notes(self, ranks: Mapping[str, int], round_number: int) -> dict[str, TurnNote]:
        """Everyone's own adapter, and who leads which pair."""
        owned = {device: np.flatnonzero(self._known.rows[device]).tolist() for device in ranks}
        notes = {device: TurnNote(round_number, owned[device], rank=rank) for device, rank in ranks.items()}
        rng = np.random.default_rng(derive_seed(self._setting.seed, "pairs", round_number))
        for pair in lora.pair_up(owned, self._params.exchanges, rng) if self._params.pairs else ():
            lead, shared = pair.turns[0], min(ranks[device] for device in pair.turns)
            notes[lead] = structs.replace(
                notes[lead], turns=list(pair.turns), drawn=list(pair.classes), pair_rank=shared
            )
        return notes

    def _fitting(self, device: str, report: Report, round_number: int) -> BudgetFit[int] | None:
        """The largest rank, and perhaps a smaller batch, within the device's budget; a pair's turns count too."""
        if not report.trains:
            return None
        pretrain = not self._base.frozen
        tasks = 1 + (self._params.exchanges if self._params.pairs and not pretrain else 0)
        fit = largest_fitting(
            self._setting,
            device,
            report=divided(self._setting, report, tasks),
            sizes=(self._params.rank,) if pretrain else self._base.ranks,
            make=lambda rank: self._assignment(device, TurnNote(round_number, pretrain=pretrain, rank=rank)),
        )
        if fit is None:
            self._left.out(device, setting=self._setting, report=report)
        else:
            self._left.back(device)
        return fit

    def _assignment(self, device: str, note: TurnNote) -> Assignment:
        recipe, returns = recipe_for(self._setting, note.round, device), self._setting.returns
        if note.measure:
            recipe = structs.replace(recipe, batch=min(recipe.batch, EVALUATION_BATCH), epochs=0, steps=None)
            returns = Returns(weights="none")
        if note.hop >= 0:
            seed = derive_seed(recipe.seed, note.hop)
            recipe = structs.replace(recipe, seed=seed, epochs=1, steps=None, classes=note.drawn)
        structure = self._base.structure(tuple(self._base.weights) if note.pretrain else self._written, note.rank)
        return Assignment(structure, recipe, returns, tuple(msgspec.msgpack.encode(note)))

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """The base while it is trained, then an adapter with the base beside it."""
        note = _note(assignment)
        if note.pretrain:
            return Emission(self._base.weights, frozen=self._base.adapters)
        if note.measure:
            own = self._net().generate(self._known.rows[device][None])[0]
            return Emission(cut_rank(own, note.rank), frozen=self._frozen[note.rank])
        self._net()
        own = self._made[device] if note.hop < 0 else lora.unflatten(self._shapes, self._passed[note.turns[0]][1])
        return Emission(cut_rank(own, note.rank), frozen=self._frozen[note.rank])

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Remember a change; a pair's adapter goes on to whoever has the next turn."""
        note = _note(update.assignment)
        self._round = note.round
        if note.measure:
            self._checkpoints.hear(device, update.stats)
            return None
        if note.pretrain:
            if not self._base.frozen:
                self._base.add(update)
            return None
        self._taken += 1
        change = pad_rank(update.tensors, self._params.rank)
        if note.hop < 0:
            self._net().add(self._row(note.classes), change, update.weight)
            if not note.turns:
                return None
            start = lora.flatten(self._shapes, self._net().generate(self._row(note.drawn)[None])[0])
            self._passed[note.turns[0]] = np.stack([start, start])
        else:
            start, end = self._passed.pop(note.turns[0])
            end = end + lora.flatten(self._shapes, change)
            if note.hop + 1 == len(note.turns):
                self._net().add(self._row(note.drawn), lora.unflatten(self._shapes, end - start), update.weight)
                return None
            self._passed[note.turns[0]] = np.stack([start, end])
        following = structs.replace(note, hop=note.hop + 1, rank=note.pair_rank)
        target = note.turns[following.hop]
        return Relay(target, self._assignment(target, following))

    def pass_on(self) -> list[Relay]:
        """When it is time, all devices that are here measure what this round began with, once pairs are done."""
        last = (self._setting.rounds, self._base.rounds)
        if self._passed or not self._here or not self._checkpoints.due(self._round, *last):
            return []
        self._checkpoints.ask()
        note = TurnNote(self._round, pretrain=not self._base.frozen, measure=True, rank=self._params.rank)
        return [Relay(device, self._assignment(device, note)) for device in self._here]

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """The base's change, or that of an adapter; one that a pair passes on goes its way."""
        note = _note(update.assignment)
        if note.hop >= 0 or note.measure:
            return None
        change = update.tensors if note.pretrain else pad_rank(update.tensors, self._params.rank)
        return note.pretrain, change

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """Σ J' Δ_i = J' Σ Δ_i where J is of the same classes; for sums only, in which devices share theirs."""
        alone = self._params.pairs or self._params.sequential or self._params.choose_every
        if not self._setting.sums or not self._params.alike or alone:
            return None
        return "devices" if self._base.frozen else "samples"

    def advance(self) -> dict[str, float]:
        """A FedAvg step of the base, or a step of the hypernetwork."""
        learns = not self._base.frozen
        score = self._checkpoints.close(self._base.weights if learns else self._net().values())
        norm = 0.0 if learns else self._net().learn(self._params.step())
        self._base.advance()
        if learns and self._base.frozen and self._checkpoints.best:
            self._base.weights = self._checkpoints.best
            self._checkpoints.begin_anew()
        taken, self._taken = self._taken, 0
        self._made, self._passed = {}, {}
        measured = {} if score is None else {"validation": score}
        return {"hypernet_gradient": norm, "adapters": float(taken), **measured}

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The base with the best adapter so far for the device's classes merged; without classes, the base."""
        return self._merged(device, self._checkpoints.best or None)

    def start_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The same with the adapter that would be written now."""
        return self._merged(device, None)

    def _merged(self, device: str, values: Tensors | None) -> tuple[ModelSpec, Tensors]:
        row = self._known.rows.get(device)
        own = self._net().generate(row[None], values)[0] if row is not None and self._base.frozen else {}
        spec, weights = self._base.merged(own)
        if row is not None and self._params.mask_logits:
            weights |= generated_models.mask_logits(self._plain_spec(), weights, row)
        return spec, weights

    def state(self) -> MethodState:
        """The base, the classes of devices, the hypernetwork, and adapters that are with pairs."""
        passed = {PAIR + lead: value.copy() for lead, value in self._passed.items()}
        own = MethodState.of(passed, taken=self._taken) | self._checkpoints.state()
        return own | self._base.state() | self._known.state() | generated_models.hypernet_state(self._hypernet)

    def planning_state(self) -> MethodState:
        """Who is here: a round goes on with them; and who shares classes with whom."""
        shared = self._known.state() if self._params.alike else MethodState()
        return MethodState.of(here=self._here) | shared

    def restore_planning(self, state: MethodState) -> None:
        """Know again who was here."""
        self._here = state.record("here", list[str])
        if self._params.alike:
            self._known.restore(state)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self._checkpoints.restore(state)
        self._base.restore(state)
        self._known.restore(state)
        self._passed = {lead: value.copy() for lead, value in state.below(PAIR).items()}
        self._made, self._hypernet, self._taken = {}, None, state.record("taken", int)
        generated_models.restore_hypernet(state, self._net)

    def _net(self) -> Hypernet:
        """The hypernetwork, made when the base is frozen: a +head variant begins with its head."""
        if self._hypernet is None:
            params, whole = self._params, {**self._base.weights, **self._base.adapters}
            begin = {n: np.zeros_like(whole[n]) if n.endswith(lora.UP) else whole[n] for n in self._written}
            start = HypernetStart(begin, lora.head_spreads(self._written, params.hidden))
            classes = self._setting.spec.classes
            form = HypernetForm(classes, params.hidden, params.layers, keep_scale=True, sequential=params.sequential)
            seed = derive_seed(self._setting.seed, "hypernetwork")
            self._hypernet = Hypernet(form, start, seed=seed, device=self._setting.device)
            frozen = {name: value for name, value in whole.items() if name not in self._written}
            self._frozen = {rank: cut_rank(frozen, rank) for rank in self._base.ranks}
        return self._hypernet

    def _row(self, classes: list[int]) -> Array:
        """What the hypernetwork reads for these classes."""
        row = np.zeros(self._setting.spec.classes, np.float32)
        row[classes] = 1
        return generated_models.unit(row)


def _note(assignment: Assignment) -> TurnNote:
    return msgspec.msgpack.decode(bytes(assignment.marks), type=TurnNote)
