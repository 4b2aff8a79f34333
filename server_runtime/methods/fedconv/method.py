"""FedConv: small models made from a large one by convolution, and large ones from small ones by transposed convolution.

Paper: Shen et al., FedConv: a learning-on-model paradigm for heterogeneous federated clients (MobiSys 2024 and its
journal extension with edge servers).
Implemented: pre-training and tuning on the server's own examples; compression with a kernel per layer, weights per
matrix, 1×1 pair with skip, weight normalisation and the cosine schedule, all ratios at once; dilation of all devices of
a round at once; learned weights of the sum; personal layers; the distillation form for unlabelled or random examples;
transfer from examples with other labels; devices of one ratio averaged before dilation and ratios that teach each
other's last layers, by edge servers (`server edge`) or here.
Left out: the authors' fine-tuning of every uploaded model on the server.
Differs: kernels start as crops, because with torch's initialisation nothing is learned; epochs are chosen on held-out
public rows, never on test data, and nothing is drawn again until it works. The modified leaky ReLU, which almost
deletes negative weights, is off. What a device learned is dilated onto the last global model (`dilate = "model"`: its
whole model). Weights of the sum start at 1 and have one number per channel. A flattened map is one matrix per position.
The divergence term is printed without a gradient; here it costs weight that is given to far models. Tensors are not
pressed into 0 … 1 before they are summed. Running statistics are taken anew on the server's examples. The exchange of
last layers is off, because it needs class means from every device and showed no gain on Fashion-MNIST at alpha 0.1.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.blocks.robust import make_mean
from fedwright.server_runtime.blocks.slicing import prefix_plan
from fedwright.server_runtime.methods.base import (
    Array,
    Assignment,
    CheckedUpdate,
    Emission,
    MethodState,
    Relay,
    Setting,
    Tensors,
)
from fedwright.server_runtime.methods.baselines.heterofl import classifier_names
from fedwright.server_runtime.methods.fedconv.exchange import ClassMeanSums, exchanged
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.methods.fedconv.server_training import DilatedUpdate, Model, ServerSide
from fedwright.server_runtime.methods.shared.submodels import LeveledMethod
from fedwright.server_runtime.spec import ModelSpec

COMPRESS, DILATE, HEAD = "compress", "dilate/", "transfer/"


class PendingUpdate:
    """The mean change of one device, or of all devices of one ratio."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.samples = 0.0
        self._total: dict[str, Array] = {}

    def add(self, change: Tensors, samples: float) -> None:
        """Fold in a change."""
        self.samples += samples
        for name, value in change.items():
            part = samples * value.astype(np.float64)
            self._total[name] = self._total[name] + part if name in self._total else part

    def mean(self) -> Tensors:
        """Σ n Δ / Σ n."""
        return {name: (value / self.samples).astype(np.float32) for name, value in self._total.items()}


class FedConv(LeveledMethod):
    """w_r = compress_r(W); W ← W + Σ_j v_j s_j dilate_j(Δ_j) / Σ_j s_j."""

    rounding = "floor"

    def __init__(self, params: FedConvParams, setting: Setting) -> None:
        super().__init__(params.levels, setting)
        last = classifier_names(setting.initial, setting.spec.classes)
        if params.exchange and any(name.startswith(params.personal_layers) for name in last):
            raise ConfigError(
                f"exchange teaches last layers but personal_layers keeps {last[0]} on the devices; leave out one"
            )
        for size in params.levels.sizes:
            check_width(setting.spec, self.level_width(size), size)
        self._params = params
        self._server = ServerSide(params, setting, self.specs)
        self._compress = torch.zeros(0)
        self._dilate: dict[str, Tensor] = {}
        self._head: Tensors = {}
        self._ready = False
        self._brought: dict[str, PendingUpdate] = {}
        self._means = ClassMeanSums()
        # How far the last tuning moved any entry of what makes small models.
        self._tuned = 0.0

    def assignment(self, device: str, spec: ModelSpec, round_number: int) -> Assignment:
        """Ordinary training; class means come back too where ratios teach each other, personal layers do not."""
        whole = super().assignment(device, spec, round_number)
        personal, means = list(self.personal_layers(device)), self._params.exchange
        return replace(whole, returns=structs.replace(whole.returns, class_means=means, personal=personal))

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
        """Put a change to those of its ratio, or keep it by itself."""
        spec = update.assignment.structure.spec
        key = _ratio_name(spec) if self._params.hierarchy else device
        change = self._means.take(key, update.tensors)
        self._brought.setdefault(key, PendingUpdate(spec)).add(change, update.weight * update.stats.samples)
        return None

    def compared(self, device: str, update: CheckedUpdate) -> tuple[Hashable, Tensors] | None:
        """The whole change, beside those of the same ratio: entries of two ratios have nothing in common."""
        return update.assignment.structure.spec, update.tensors

    def pools_by(self) -> Literal["samples", "devices"] | None:
        """Changes of one ratio are averaged anyway, so that edges may do it; not where devices are told apart."""
        alike = self._params.hierarchy and not self._params.exchange and self.setting.combine.kind == "mean"
        return "samples" if alike else None

    def advance(self) -> dict[str, float]:
        """Dilate what came, sum it up, and tune the compression for the next round."""
        self._prepare()
        changed = {key: own for key, own in self._brought.items() if any(v.any() for v in own.mean().values())}
        self._brought, self._tuned = {}, 0.0
        if changed:
            self._learn(changed)
        self._means = ClassMeanSums()
        self.advanced += 1
        return {"tuned": self._tuned}

    def _learn(self, changed: dict[str, PendingUpdate]) -> None:
        parts = {}
        for key, own in changed.items():
            sent = self.submodel("", own.spec, ())
            # Of personal layers nothing comes.
            still = {name: np.zeros_like(sent[name]) for name in self.personal_layers("")}
            parts[key] = DilatedUpdate(own.spec, still | own.mean(), sent, own.samples)
        if self._params.exchange:
            parts = exchanged(parts, self._means, classifier_names(self.weights, self.setting.spec.classes))
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
        """An ordinary small model."""
        return Emission(self.submodel(device, assignment.structure.spec, ()))

    def model_of(self, device: str) -> tuple[ModelSpec, Tensors]:
        """The device's compressed model; the large one for no device in particular."""
        self._prepare()
        if not device:
            return self.setting.spec, self.weights
        spec = self.spec_of(device)
        return spec, self.submodel(device, spec, ())

    def state(self) -> MethodState:
        """The large model, all kernels, heads that are not shared."""
        tensors = {COMPRESS: self._compress.cpu().numpy()}
        tensors |= {DILATE + key: value.cpu().numpy() for key, value in self._dilate.items()}
        tensors |= {HEAD + name: value for name, value in self._head.items()}
        return super().state() | MethodState.of(tensors, ready=self._ready)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        super().restore(state)
        device = self.setting.device
        self._ready = state.record("ready", bool)
        self._compress = torch.from_numpy(state.tensors[COMPRESS].copy()).to(device)
        self._dilate = {key: torch.from_numpy(v.copy()).to(device) for key, v in state.below(DILATE).items()}
        self._head = state.below(HEAD)
        self._brought, self._means = {}, ClassMeanSums()


def check_width(spec: ModelSpec, width: float, size: float) -> None:
    """Raise ConfigError when the width that a level's size means leaves a layer without channels."""
    said = f"ratio {width:g}" if width == size else f"size {size:g}, a width of {width:g},"
    for group, full in zoo.full_sizes(spec).items():
        if round(full * width, 11) < 1:
            raise ConfigError(
                f"{said} leaves nothing of the {full} channels of {group} in {spec.model}; "
                f"give a width of at least {1 / full:g} or a wider model"
            )


def _ratio_name(spec: ModelSpec) -> str:
    return f"width-{zoo.width_of(spec):.4f}"
