"""What FedConv's server learns on its own examples: a first model, kernels, and the weights of the sum."""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.classifier import classifier_names
from fedwright.server_runtime.blocks.fedconv import learned_weights
from fedwright.server_runtime.blocks.fedconv.compression import Compression, compress
from fedwright.server_runtime.blocks.fedconv.dilation import Dilation
from fedwright.server_runtime.blocks.fedconv.kernels import Layout, make_layout, start_vector
from fedwright.server_runtime.blocks.joint_tuning import (
    Examples,
    Forward,
    Goal,
    Schedule,
    TunedModel,
    flat,
    forward_of,
    logits_of,
    recalibrated,
    tune,
    unflat,
)
from fedwright.server_runtime.blocks.slicing import prefix_plan, take
from fedwright.server_runtime.blocks.torch_device import on_device
from fedwright.server_runtime.engine.spread import is_elsewhere, spread
from fedwright.server_runtime.methods.base import Array, Setting, Tensors
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec

log = logging.getLogger(__name__)

Model = dict[str, Tensor]


@dataclass(frozen=True)
class DilatedUpdate:
    """What devices of one size brought: their mean change, and the submodel it was made from."""

    spec: ModelSpec
    change: Mapping[str, Array]
    sent: Mapping[str, Array]
    samples: float


@dataclass(frozen=True)
class _Kernels:
    """What kernels are tuned on: the large model, the server's own head, what both say of examples without labels."""

    weights: Tensors
    head: Tensors
    teacher: Tensor | None
    epochs: int
    number: int


class ServerSide:
    """Learns on the public examples; without any, kernels stay crops and sums stay means."""

    def __init__(self, params: FedConvParams, setting: Setting, specs: Sequence[ModelSpec]) -> None:
        self._params, self._setting = params, setting
        self.specs = [spec for spec in specs if spec != setting.spec]
        self.examples = _examples(params, setting)
        classes = setting.spec.classes
        if params.transfer and self.examples is not None and self.examples.y is not None:
            classes = int(self.examples.y.max()) + 1
        self._classes = classes
        self._forwards: dict[ModelSpec, Forward] = {}
        self.names = [name for name, _ in self.module(setting.spec).named_parameters()]
        self._head = classifier_names(setting.spec, {n: setting.initial[n] for n in self.names})

    def module(self, spec: ModelSpec) -> nn.Module:
        """A model at a spec's sizes, with the classes of the server's examples."""
        return zoo.create(replace(spec, classes=self._classes), seed=derive_seed(self._setting.seed, "server model"))

    def forward(self, spec: ModelSpec) -> Forward:
        """How such a model computes."""
        if spec not in self._forwards:
            self._forwards[spec] = forward_of(self.module(spec).to(self._setting.device))
        return self._forwards[spec]

    @cached_property
    def layout(self) -> Layout:
        """Where the kernels of every layer lie; without examples they are plain crops."""
        params, spec = self._params, self._setting.spec
        form = params.kernel_form
        if self.examples is None:
            form = replace(form, noise=0.0, pair=False, mlr=None, delta=True, shared=True)
        smallest = min(self.specs, key=zoo.width_of, default=spec)
        shapes = {name: self._setting.initial[name].shape for name in self.names}
        full = zoo.full_sizes(spec)
        return make_layout(zoo.axes_of(spec), shapes, full=full, smallest=zoo.sizes_of(smallest), form=form)

    def check_kernels(self) -> None:
        """Raise ConfigError where a stride leaves a ratio without a kernel."""
        for spec in self.specs:
            for slot in self.layout.slots:
                slot.kernel(zoo.sizes_of(spec))

    def start(self, spec: ModelSpec, *names: str) -> Tensor:
        """The first parameters of one set of kernels."""
        generator = torch.Generator().manual_seed(derive_seed(self._setting.seed, *names))
        made = start_vector(self.layout, zoo.sizes_of(spec), generator=generator)
        return made.to(self._setting.device)

    def tensors(self, weights: Mapping[str, Array]) -> Model:
        """A model's parameters on the server's torch device."""
        return {n: on_device(np.array(weights[n], np.float32), self._setting.device) for n in self.names}

    def own_head(self, head: Mapping[str, Array]) -> Model:
        """The head for the server's own labels on the server's torch device."""
        return {name: on_device(value, self._setting.device) for name, value in head.items()}

    def first_model(self, weights: Tensors) -> tuple[Tensors, Tensors]:
        """Ordinary training on labelled examples; returns the weights and, for other classes, the server's own head."""
        if self.examples is None or self.examples.y is None:
            return weights, {}
        start = self.tensors(weights)
        own: dict[str, Tensor] = {}
        if self._params.transfer:
            fresh = dict(self.module(self._setting.spec).named_parameters())
            own = {name: fresh[name].detach().to(self._setting.device) for name in self._head}
        trained = self.train({**start, **own}, self._setting.spec, self._params.pretrain_epochs, "pretrain")
        head = {name: _array(trained[name]) for name in own}
        return self.finished({**trained, **{name: start[name] for name in own}}, weights), head

    def train(self, weights: Model, spec: ModelSpec, epochs: int, *names: str, rate: float | None = None) -> Model:
        """Ordinary training of all weights on labelled examples, at the server's rate unless another is given."""
        assert self.examples is not None
        schedule = self._schedule(epochs, rate or self._params.server_rate, "training on public examples")
        members = [TunedModel(self.forward(spec), Goal(self.examples))]
        theta = tune(
            flat(weights), lambda t: [unflat(t, weights)], members, schedule=schedule, seed=self._seed("train", *names)
        )
        return unflat(theta, weights)

    def trained_more(self, weights: Tensors, epochs: int, *names: str) -> Tensors:
        """The large model's parameters after ordinary training."""
        trained = self.train(self.tensors(weights), self._setting.spec, epochs, *names)
        return {name: _array(value) for name, value in trained.items()}

    def improved(
        self, weights: Tensors, spec: ModelSpec, epochs: int, *names: str, rate: float | None = None
    ) -> Tensors:
        """A model of any size after ordinary training; as it was without labelled examples."""
        if self.examples is None or self.examples.y is None:
            return weights
        return self._kept(self.train(self.tensors(weights), spec, epochs, *names, rate=rate), weights, spec)

    def finished(self, model: Model, before: Tensors) -> Tensors:
        """A large model as it is kept, with its running statistics taken anew where there are examples."""
        return self._kept(model, before, self._setting.spec)

    def _kept(self, model: Model, before: Tensors, spec: ModelSpec) -> Tensors:
        """Parameters from the model, buffers as they were or, where there are examples, taken anew."""
        buffers = {name: value for name, value in before.items() if name not in self.names}
        if self.examples is not None and buffers:
            both = {**model, **{name: torch.from_numpy(value) for name, value in buffers.items()}}
            buffers = {n: _array(v) for n, v in recalibrated(zoo.create(spec, seed=0), both, self.examples.x).items()}
        return {name: _array(model[name]) if name in model else buffers[name] for name in before}

    def tuned_compression(self, theta: Tensor, weights: Tensors, head: Tensors, *, epochs: int, number: int) -> Tensor:
        """Kernels of all ratios, tuned while the large model stands still."""
        if self.examples is None or not self.specs:
            return theta
        # Each ratio by itself, so that none need wait for another, and the bits are those of any number of workers.
        teacher = None
        if self.examples.y is None:
            large = {**self.tensors(weights), **self.own_head(head)}
            teacher = logits_of(self.forward(self._setting.spec), large, self.examples.x)
        kernels = _Kernels(weights, head, teacher, epochs, number)
        items = [(index, row.clone()) for index, row in enumerate(theta)]
        rows = spread(self._setting.engine, _tuned_row, items, self._alone(), kernels)
        return torch.stack(rows).to(theta.device)

    def _alone(self) -> "ServerSide":
        """The same without what belongs to this process."""
        if not is_elsewhere(self._setting.engine):
            return self
        made = copy.copy(self)
        made._setting, made._forwards = self._setting.alone(), {}
        return made

    def tuned_ratio(self, index: int, row: Tensor, kernels: "_Kernels") -> Tensor:
        """The kernels of one ratio."""
        assert self.examples is not None
        large = {**self.tensors(kernels.weights), **self.own_head(kernels.head)}
        spec, layout = self.specs[index], self._server_layout(large)
        made = Compression(layout, [zoo.sizes_of(spec)], large, device=self._setting.device)
        return tune(
            row[None],
            made.submodels,
            [TunedModel(self.forward(spec), Goal(self.examples, kernels.teacher))],
            schedule=self._schedule(kernels.epochs, self._params.kernel_rate, "tuning the compression"),
            seed=self._seed("compress", kernels.number),
        )[0]

    def submodel(self, theta: Tensor, weights: Tensors, spec: ModelSpec) -> Tensors:
        """What a device of this size gets: an ordinary small model."""
        row = theta[self.specs.index(spec)]
        made = compress(self.layout, row, self.tensors(weights), zoo.sizes_of(spec))
        return self._kept(made, _cropped(weights, spec, self._setting.spec), spec)

    def dilated(
        self, theta: Tensor, parts: Sequence[DilatedUpdate], weights: Tensors, head: Tensors, *, number: int
    ) -> tuple[Tensor, list[Model]]:
        """Large models from what devices brought, and the kernels that made them; all of a round together."""
        small = [self._small(part) for part in parts]
        base = self.tensors(weights) if self._params.dilate == "change" else None
        sizes = [zoo.sizes_of(part.spec) for part in parts]
        made = Dilation(self.layout, sizes, small, base=base, device=self._setting.device)
        if self.examples is not None:
            own = self.own_head(head)
            members = [TunedModel(self.forward(self._setting.spec), self._goal(part)) for part in parts]
            theta = tune(
                theta,
                lambda t: [{**model, **own} for model in made.models(t)],
                members,
                schedule=self._schedule(self._params.dilate_epochs, self._params.kernel_rate, "tuning the dilation"),
                seed=self._seed("dilate", number),
            )
        with torch.no_grad():
            return theta, made.models(theta)

    def _small(self, part: DilatedUpdate) -> Model:
        """The images to dilate: a change, or the whole small model after the device's training."""
        change = {name: torch.from_numpy(np.array(part.change[name], np.float32)) for name in self.names}
        change = {name: value.to(self._setting.device) for name, value in change.items()}
        if self._params.dilate == "change":
            return change
        return {name: value + change[name] for name, value in self.tensors(part.sent).items()}

    def summed(
        self, models: Sequence[Model], parts: Sequence[DilatedUpdate], weights: Tensors, head: Tensors, *, number: int
    ) -> Tensors:
        """The next large model: base + Σ v_j s_j D_j / Σ s_j with v tuned on the examples."""
        params, last = self._params, self.tensors(weights)
        samples = [part.samples for part in parts]
        base = last if params.dilate == "change" else {name: torch.zeros_like(value) for name, value in last.items()}
        brought = [{name: model[name] - base[name] for name in base} for model in models]
        if params.equalise:
            brought = learned_weights.equalised(brought, samples)
        granularity = "layer" if params.weigh == "none" else params.weigh
        found = learned_weights.Weighing.of(brought, samples, base=base, granularity=granularity)
        v = found.start()
        if params.weigh != "none" and self.examples is not None:
            own = self.own_head(head)
            extra = None
            if params.divergence:
                far = learned_weights.divergences(models, last)
                extra = partial(_penalty, found, far, params.divergence)
            v = tune(
                v,
                lambda t: [{**found.model(t), **own}],
                [TunedModel(self.forward(self._setting.spec), self._common_goal(parts))],
                schedule=self._schedule(
                    params.weigh_epochs, params.weigh_rate, "tuning the weights of the sum", shape=params.weigh_schedule
                ),
                seed=self._seed("weigh", number),
                extra=extra,
            )
        return {name: _array(value) for name, value in found.model(v).items()}

    def _goal(self, part: DilatedUpdate) -> Goal:
        """Labels, or what the device's own small model says."""
        assert self.examples is not None
        return Goal(self.examples, None if self.examples.y is not None else self._opinion(part))

    def _common_goal(self, parts: Sequence[DilatedUpdate]) -> Goal:
        """Labels, or the mean of what all small models say."""
        assert self.examples is not None
        if self.examples.y is not None:
            return Goal(self.examples)
        total = sum(part.samples for part in parts)
        opinions = [part.samples / total * self._opinion(part) for part in parts]
        return Goal(self.examples, torch.stack(opinions).sum(0))

    def _opinion(self, part: DilatedUpdate) -> Tensor:
        assert self.examples is not None
        trained = {name: part.sent[name] + part.change[name] for name in self.names}
        return logits_of(self.forward(part.spec), self.tensors(trained), self.examples.x)

    def answers(self, part: DilatedUpdate) -> dict[int, Array]:
        """What a small model says of each class of the labelled examples: the mean of its probabilities [C]."""
        assert self.examples is not None
        assert self.examples.y is not None
        said, labels = torch.softmax(self._opinion(part).double(), dim=1), self.examples.y
        return {int(label): said[labels == label].mean(0).cpu().numpy() for label in torch.unique(labels)}

    def _server_layout(self, large: Model) -> Layout:
        """The layout for a model with the server's own head: its kernels have the same numbers."""
        if self._classes == self._setting.spec.classes:
            return self.layout
        shapes = {name: value.shape for name, value in large.items()}
        spec, smallest = self._setting.spec, min(self.specs, key=zoo.width_of)
        axes, full = zoo.axes_of(spec), zoo.full_sizes(spec)
        return make_layout(axes, shapes, full=full, smallest=zoo.sizes_of(smallest), form=self.layout.form)

    def _schedule(self, epochs: int, rate: float, work: str, *, shape: str = "cosine") -> Schedule:
        """Eq. 5, or always the same rate."""
        low = rate if shape == "constant" else min(rate, self._params.lowest_rate)
        period = self._params.rate_period
        return Schedule(epochs, self._params.server_batch, high=rate, low=low, period=period, work=work)

    def _seed(self, *names: str | int) -> int:
        return derive_seed(self._setting.seed, "server", *names)


def _tuned_row(item: tuple[int, Tensor], server: ServerSide, kernels: _Kernels) -> Tensor:
    return server.tuned_ratio(*item, kernels)


def _penalty(found: learned_weights.Weighing, far: Tensor, factor: float, v: Tensor) -> Tensor:
    return factor * learned_weights.penalty(found, v, far)


def _examples(params: FedConvParams, setting: Setting) -> Examples | None:
    """The server's rows; numbers drawn at random stand in for them where that is asked for."""
    seed, public = derive_seed(setting.seed, "server examples"), setting.public
    if public is not None and len(public):
        if len(public) < 2:
            raise ConfigError("the server has a single example, which cannot be split; give public.rows of at least 2")
        if public.y is not None and not params.transfer:
            _check_classes(public.y, setting.spec.classes)
        return Examples.of(public.x, public.y, holdout=params.holdout, seed=seed, device=setting.device)
    if not params.random_examples:
        log.warning(
            "the server has no examples, so that small models are crops of the large one and sums are plain means; "
            "set public.file (public.rows in a simulation), or random_examples to tune on random numbers"
        )
        return None
    drawn = np.random.default_rng(seed).standard_normal((params.random_examples, *setting.spec.input_shape), np.float32)
    return Examples.of(drawn, None, holdout=params.holdout, seed=seed, device=setting.device)


def _check_classes(y: Array, classes: int) -> None:
    missing = np.setdiff1d(np.arange(classes), y)
    if len(missing):
        raise ConfigError(
            f"the server's examples have none of class {missing[0]}, which they would teach every model to forget; "
            "give more public.rows, or set public.labelled = false or transfer = true"
        )


def _cropped(weights: Tensors, spec: ModelSpec, whole: ModelSpec) -> Tensors:
    """The first channels of every tensor: running statistics until they are taken anew."""
    plan = prefix_plan(zoo.full_sizes(whole), zoo.sizes_of(spec))
    return take(weights, zoo.axes_of(whole), plan)


def _array(value: Tensor) -> Array:
    return value.detach().cpu().numpy().astype(np.float32)
