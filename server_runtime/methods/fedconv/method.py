"""FedConv: small models made from a large one by convolution, and large ones from small ones by transposed convolution.

Paper: Shen et al., FedConv: a learning-on-model paradigm for heterogeneous federated clients (MobiSys 2024 and its
journal extension with edge servers).
Implemented: pre-training and tuning on the server's own examples; compression with a kernel per layer, weights per
matrix, 1×1 pair with skip, weight normalisation and the cosine schedule, all ratios at once; one dilation for each
device, cluster or ratio, all of a round at once; learned weights of the sum; clusters of like devices, made by edge
servers (`server edge`) or here, which keep their own aggregate; the exchange, in which devices of linked clusters train
their last layers on through each other's; personal layers; the distillation form for unlabelled or random examples;
transfer from examples with other labels.
Left out: the authors' fine-tuning of every uploaded model on the server.
Differs: kernels start as crops, because with torch's initialisation nothing is learned; epochs are chosen on held-out
public rows, never on test data, and nothing is drawn again until it works. The modified leaky ReLU, which almost
deletes negative weights, is off. What a device learned is dilated onto the last global model (`dilate = "model"`: its
whole model). Weights of the sum start at 1 and have one number per channel. A flattened map is one matrix per position.
The divergence term is printed without a gradient; here it costs weight that is given to far models. Tensors are not
pressed into 0 … 1 before they are summed. Running statistics are taken anew on the server's examples. In the exchange a
device sees no other device's samples: it projects its own features into the other cluster's last layer.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Refusal
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.classifier import classifier_names
from fedwright.server_runtime.blocks.robust import make_mean
from fedwright.server_runtime.blocks.slicing import prefix_plan
from fedwright.server_runtime.blocks.torch_device import on_device
from fedwright.server_runtime.methods.base import (
    Assignment,
    CheckedUpdate,
    Emission,
    MethodState,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.fedconv.exchange import Exchange, HeldGroup, TrainedGroup, linked_pairs
from fedwright.server_runtime.methods.fedconv.groups import Groups
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.methods.fedconv.server_training import DilatedUpdate, Model, ServerSide
from fedwright.server_runtime.methods.shared.personal_models import models_state, restored_models
from fedwright.server_runtime.methods.shared.recipes import recipe_for
from fedwright.server_runtime.methods.shared.submodels import LeveledMethod
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.server_runtime.zoo.linked import last_linear

COMPRESS, DILATE, HEAD, OWN = "compress", "dilate/", "transfer/", "own"


class FedConv(LeveledMethod):
    """w_r = compress_r(W); W ← W + Σ_j v_j s_j dilate_j(Δ_j) / Σ_j s_j."""

    rounding = "floor"

    def __init__(self, params: FedConvParams, setting: Setting) -> None:
        super().__init__(params.levels, setting)
        for size in params.levels.sizes:
            check_width(setting.spec, self.level_width(size), size)
        self._params = params
        self._server = ServerSide(params, setting, self.specs)
        self._server.check_kernels()
        self._compress = torch.zeros(0)
        self._dilate: dict[str, Tensor] = {}
        self._head: Tensors = {}
        self._ready = False
        self._exchange = self._make_exchange()
        head = next(iter(classifier_names(setting.spec, setting.initial)), "")
        self._groups = Groups(params.group, params.clusters, head, derive_seed(setting.seed, "clusters"))
        # Each device's model after its own training: as of the last round, and of this one until it is closed.
        self._own: dict[str, tuple[ModelSpec, Tensors]] = {}
        self._owning: dict[str, tuple[ModelSpec, Tensors]] = {}
        self._emitted: dict[str, Emission] = {}
        # How far the last tuning moved any entry of what makes small models.
        self._tuned = 0.0

    def _make_exchange(self) -> Exchange | None:
        """What the exchange needs; ConfigError where it, or making clusters, lacks something."""
        params, setting = self._params, self.setting
        last = classifier_names(setting.spec, setting.initial)
        if not last and (params.exchange or params.clusters > 1):
            raise ConfigError(
                f"exchange and clusters compare last layers but no layer of {setting.spec.model} makes its logits "
                "alone; leave them out"
            )
        kept = any(name.startswith(params.personal_layers) for name in last)
        if kept and (params.exchange or params.clusters > 1):
            raise ConfigError(
                f"exchange and clusters compare last layers but personal_layers keeps {last[0]} on the devices; leave "
                "out one"
            )
        if not params.exchange:
            return None
        if self._server.examples is None or self._server.examples.y is None:
            raise ConfigError(
                "exchange compares clusters by what they answer for labelled examples on the server; set public.file "
                "(public.rows in a simulation), or leave out exchange"
            )
        layer = last_linear(zoo.create(setting.spec, seed=0), setting.spec.classes)
        return Exchange(layer, params.exchange_share)

    def assignment(self, device: str, spec: ModelSpec, round_number: int) -> Assignment:
        """Ordinary training; personal layers do not come back."""
        whole = super().assignment(device, spec, round_number)
        personal = list(self.personal_layers(device))
        return replace(whole, returns=structs.replace(whole.returns, personal=personal))

    def personal_layers(self, device: str) -> tuple[str, ...]:
        """The same for all devices."""
        del device
        return tuple(name for name in self.weights if name.startswith(self._params.personal_layers))

    def _prepare(self) -> None:
        """Before anything is sent: train on the server's examples and tune the compression."""
        if self._ready:
            return
        self._ready = True
        self.weights, self._head = self._server.first_model(self.weights)
        starts = [self._server.start(spec, "compress", str(spec.sizes)) for spec in self._server.specs]
        self._compress = torch.stack(starts) if starts else torch.zeros(0)
        self._tune_compression(self._params.compress_epochs)

    def _tune_compression(self, epochs: int) -> None:
        before = self._compress
        self._compress = self._server.tuned_compression(
            before, self.weights, self._head, epochs=epochs, number=self.advanced
        )
        self._tuned = float((self._compress - before).abs().max()) if before.numel() else 0.0
        self._sent.clear()

    def submodel(self, device: str, spec: ModelSpec, marks: tuple[int, ...]) -> Tensors:
        """The compressed model of a ratio."""
        self._prepare()
        key = (spec, ())
        if key not in self._sent:
            whole = spec == self.setting.spec
            self._sent[key] = self.weights if whole else self.compressed(spec)
        return self._sent[key]

    def compressed(self, spec: ModelSpec) -> Tensors:
        """The large model at a ratio."""
        return self._server.submodel(self._compress, self.weights, spec)

    def absorb(self, device: str, update: CheckedUpdate) -> Relay | None:
        """Put a change to those of its group, and keep what its device has of it."""
        spec, devices = update.assignment.structure.spec, update.devices or (device,)
        if spec.links:
            self._absorb_exchanged(device, devices, update)
            return None
        self._groups.add(device, update)
        sent = self.submodel(device, spec, ())
        # Of personal layers nothing comes.
        trained = sent | {name: sent[name] + change for name, change in update.tensors.items()}
        self._keep(devices, spec, trained)
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """The whole change, beside those of the same ratio: entries of two ratios have nothing in common."""
        return update.assignment.structure.spec, update.tensors

    def _absorb_exchanged(self, device: str, devices: tuple[str, ...], update: CheckedUpdate) -> None:
        assert self._exchange is not None
        key = self._exchange.group_of(device)
        self._exchange.add(key, update.tensors, update.weight * update.stats.samples)
        spec = replace(update.assignment.structure.spec, links=(), link_share=self.setting.spec.link_share)
        self._keep(devices, spec, self._exchange.own_model(key, update.tensors))

    def _keep(self, devices: tuple[str, ...], spec: ModelSpec, model: Tensors) -> None:
        if self._params.keep_own:
            self._owning |= dict.fromkeys(devices, (spec, model))

    def pass_on(self) -> list[Relay]:
        """After local training: the exchange, for the devices of linked clusters."""
        if self._exchange is None or self._exchange.held:
            return []
        trained = self._trained_groups()
        links = self._links(trained) if len(trained) > 1 else {}
        if not links:
            self._exchange.held = trained
            return []
        self._exchange.held = {key: replace(group, links=links.get(key, ())) for key, group in trained.items()}
        return [
            Relay(device, self._exchange_assignment(device, key))
            for key, group in sorted(self._exchange.held.items())
            for device in group.members
            if group.links
        ]

    def _links(self, trained: Mapping[str, TrainedGroup]) -> dict[str, tuple[str, ...]]:
        """Whom each cluster is linked with."""
        answers = {key: self._server.answers(group.part) for key, group in trained.items()}
        return linked_pairs(answers, self._params.exchange_links)

    def _exchange_assignment(self, device: str, key: str) -> Assignment:
        """The last layer and the projections learn on the device."""
        assert self._exchange is not None
        own, number = self.setting, self.advanced + 1
        recipe = recipe_for(own, number, device)
        seed = derive_seed(recipe.seed, "exchange")
        recipe = structs.replace(recipe, epochs=self._params.exchange_epochs, steps=None, seed=seed)
        spec = self._exchange.linked_spec(key)
        structure = Structure(spec, optimizer=own.optimizer, trainable=self._exchange.trainable())
        return Assignment(structure, recipe, own.returns)

    def shrink(self, device: str, assignment: Assignment, refusal: Refusal) -> Assignment | None:
        """A smaller ratio; an exchange has none."""
        return None if assignment.structure.spec.links else super().shrink(device, assignment, refusal)

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """Groups are averaged anyway, so that edges may do it; not where every device is dilated by itself."""
        pools = self._params.group != "device" and self.setting.combine.kind == "mean"
        return "samples" if pools else None

    def advance(self) -> dict[str, float]:
        """Dilate what came, sum it up, and tune the compression for the next round."""
        self._prepare()
        if self._exchange is not None and self._exchange.held:
            parts = self._exchange.close()
        else:
            parts = {key: group.part for key, group in self._trained_groups().items()}
        parts = {key: part for key, part in parts.items() if any(v.any() for v in part.change.values())}
        self._tuned = 0.0
        if parts:
            self._learn(parts)
        self._own |= self._owning
        self._owning, self._emitted = {}, {}
        self.advanced += 1
        return {"tuned": self._tuned, "groups": float(len(parts))}

    def _trained_groups(self) -> dict[str, TrainedGroup]:
        """The groups of what came in this round."""
        sent = {spec: self.submodel("", spec, ()) for spec in self._groups.specs()}
        found = {}
        for key, own in self._groups.close(sent).items():
            start = sent[own.spec]
            # Of personal layers nothing comes.
            still = {name: np.zeros_like(start[name]) for name in self.personal_layers("")}
            part = DilatedUpdate(own.spec, still | own.mean(), start, own.samples)
            found[key] = TrainedGroup(part, tuple(own.members))
        return found

    def _learn(self, parts: dict[str, DilatedUpdate]) -> None:
        models = self._large_models(parts)
        listed = [parts[key] for key in models]
        summed = self._server.summed(list(models.values()), listed, self.weights, self._head, number=self.advanced)
        if self._params.server_epochs:
            summed = self._server.trained_more(summed, self._params.server_epochs, str(self.advanced))
        moved = {**self.weights, **self._running(listed), **summed}
        self.weights = self._server.finished({n: torch.from_numpy(moved[n]) for n in summed}, moved)
        self._tune_compression(self._params.again_epochs)

    def _large_models(self, parts: dict[str, DilatedUpdate]) -> dict[str, Model]:
        """Full-sized devices as they are, the others dilated in one batch."""
        whole = {key: part for key, part in parts.items() if part.spec == self.setting.spec}
        models = {
            key: self._server.tensors({n: part.sent[n] + part.change[n] for n in part.change})
            for key, part in whole.items()
        }
        keys = [key for key in sorted(parts) if key not in whole]
        if keys:
            for key in keys:
                if key not in self._dilate:
                    self._dilate[key] = self._server.start(parts[key].spec, "dilate", key)
            theta = torch.stack([self._dilate[key] for key in keys])
            theta, made = self._server.dilated(
                theta, [parts[key] for key in keys], self.weights, self._head, number=self.advanced
            )
            self._dilate |= dict(zip(keys, theta.unbind(0), strict=True))
            models |= dict(zip(keys, made, strict=True))
        return {key: models[key] for key in sorted(models)}

    def _running(self, parts: list[DilatedUpdate]) -> Tensors:
        """Running statistics, averaged over those who hold them; they are taken anew where there are examples."""
        names = [name for name in self.weights if name not in self._server.names]
        if not names:
            return {}
        mean = make_mean(self.setting.combine, {name: np.zeros_like(self.weights[name]) for name in names}, self.axes)
        for part in parts:
            plan = prefix_plan(self.full, zoo.sizes_of(part.spec))
            mean.add({name: part.change[name] for name in names}, plan, part.samples)
        change = mean.result()
        return {name: self.weights[name] + change[name] for name in names}

    def emit(self, device: str, assignment: Assignment) -> Emission:
        """An ordinary small model; in an exchange what the device's cluster has made of it."""
        if assignment.structure.spec.links and self._exchange is not None:
            return self._exchange_emission(self._exchange.group_of(device))
        return Emission(self.submodel(device, assignment.structure.spec, ()))

    def _exchange_emission(self, key: str) -> Emission:
        """One for all devices of a cluster, so that it is stored once."""
        assert self._exchange is not None
        if key not in self._emitted:
            self._emitted[key] = self._exchange.emission(key)
        return self._emitted[key]

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """What the device had after its own training, else what it would begin with; for no device the large model."""
        return self._own[device] if device in self._own else self.start_of(device)

    def start_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The device's compressed model; the large one for no device in particular."""
        self._prepare()
        if not device:
            return self.setting.spec, self.weights
        spec = self.spec_of(device)
        return spec, self.submodel(device, spec, ())

    def state(self) -> MethodState:
        """The large model, all kernels, heads that are not shared, groups, and the devices' own models."""
        tensors = {COMPRESS: self._compress.cpu().numpy()}
        tensors |= {DILATE + key: value.cpu().numpy() for key, value in self._dilate.items()}
        tensors |= {HEAD + name: value for name, value in self._head.items()}
        whole = super().state() | MethodState.of(tensors, ready=self._ready, clusters=self._groups.known)
        if self._exchange is not None:
            whole |= self._exchange.state() | models_state("owning", self._held_own())
        return whole | models_state(OWN, self._own)

    def _held_own(self) -> dict[str, tuple[ModelSpec, Tensors]]:
        """Devices' own models between the two trainings of a round; what came outside of one is not for a state."""
        return self._owning if self._exchange is not None and self._exchange.held else {}

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        device = self.setting.device
        self._ready = state.record("ready", bool)
        self._compress = on_device(state.tensors[COMPRESS].copy(), device)
        self._dilate = {key: on_device(v.copy(), device) for key, v in state.below(DILATE).items()}
        self._head = state.below(HEAD)
        self._groups.forget()
        self._groups.known = state.record("clusters", dict[str, tuple[str, str]])
        self._own, self._owning = restored_models(OWN, state), {}
        self._emitted = {}
        if self._exchange is not None:
            held = state.record("held", list[HeldGroup])
            sent = {one.spec: self.submodel("", one.spec, ()) for one in held}
            self._exchange.restore(state, sent)
            self._owning = restored_models("owning", state)


def check_width(spec: ModelSpec, width: float, size: float) -> None:
    """Raise ConfigError when the width that a level's size means leaves a layer without channels."""
    said = f"ratio {width:g}" if width == size else f"size {size:g}, a width of {width:g},"
    for group, full in zoo.full_sizes(spec).items():
        if round(full * width, 11) < 1:
            raise ConfigError(
                f"{said} leaves nothing of the {full} channels of {group} in {spec.model}; "
                f"give a width of at least {1 / full:g} or a wider model"
            )
