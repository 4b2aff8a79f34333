"""What a run's method gets at its birth, made of the config and of what devices report."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.goals import GOALS
from fedwright.protocol.messages import Report, Returns
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.artifacts.classifier import classifier_matrix
from fedwright.server_runtime.artifacts.export import model_inputs
from fedwright.server_runtime.artifacts.pretrained import start_from
from fedwright.server_runtime.blocks.torch_device import choose_device
from fedwright.server_runtime.config import ModelSection, RunConfig
from fedwright.server_runtime.fleet.admission import is_without_data
from fedwright.server_runtime.fleet.class_names import RunData, fleet_names, largest_believed
from fedwright.server_runtime.methods import registry
from fedwright.server_runtime.methods.base import Forecasts, Method, Setting, Tensors
from fedwright.server_runtime.public_data.examples import PublicData, as_dtype, load_public
from fedwright.server_runtime.rounds.privacy.round_privacy import central_noise
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Structure


def infer_spec(section: ModelSection, reports: Mapping[str, Report]) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model's input and classes, and their names if they have any: as configured, else as most devices report.

    Of numbers of classes the largest counts that the median bears out; who claims more is turned away.
    """
    shapes = [tuple(r.data.input_shape) for _, r in sorted(reports.items()) if not is_without_data(r)]
    shape = section.input_shape or Counter(shapes).most_common(1)[0][0]
    fitting = {device: report for device, report in reports.items() if tuple(report.data.input_shape) == shape}
    names = fleet_names(section.classes, fitting)
    given = section.classes if isinstance(section.classes, int) else len(names)
    classes = given or largest_believed([report.data.classes for report in fitting.values()])
    if classes < (1 if GOALS[section.goal].numbers else 2):
        raise ConfigError("the devices report fewer than two classes; give them labelled data or set model.classes")
    return zoo.named(
        section.model, ModelSpec(section.model, shape, classes, goal=section.goal, loss=section.loss)
    ), names


def make_method(config: RunConfig, spec: ModelSpec, *more: Any, **known: Any) -> Method:
    """The configured method at its birth, with what `make_setting` takes; the same config gives the same everywhere."""
    return registry.find(config.method.name).make(config.method.params, make_setting(config, spec, *more, **known))


def make_setting(
    config: RunConfig,
    spec: ModelSpec,
    manifest: Callable[[Structure], Manifest] | None = None,
    *,
    public: PublicData | None = None,
    forecasts: Forecasts | None = None,
    class_names: tuple[str, ...] = (),
) -> Setting:
    """What the configured method gets at its birth.

    manifest: tells the method what a structure needs of a device. public: instead of the config's own file.
    forecasts: how long that takes there. class_names: of the run, for a file of public examples that names its own.
    """
    _check_foreign(config)
    module = zoo.create(spec, seed=derive_seed(config.run.seed, "initial weights"))
    return Setting(
        spec=spec,
        optimizer=config.train.optimizer,
        initial=_initial(config, module, spec),
        learning_rate=config.train.learning_rate,
        batch=config.train.batch,
        epochs=config.train.epochs,
        seed=config.run.seed,
        returns=Returns(
            codec=config.update.codec, keep_ratio=config.update.keep_ratio, evaluate=config.update.evaluate
        ),
        combine=replace(config.update.combination(), central=central_noise(config)),
        manifest=manifest,
        device=choose_device(config.server.device),
        public=as_dtype(
            public or load_public(config.public, spec, seed=config.run.seed, class_names=class_names),
            str(model_inputs(module, spec)[0].dtype),
        ),
        budget=config.budget.limits(),
        forecasts=forecasts,
        rounds=config.run.rounds,
        steps=config.train.steps,
        schedule=config.train.schedule,
        sums=config.update.secure,
        slower=config.budget.slower,
        trainable=config.train.trainable,
        packing=config.train.frozen,
    )


def _check_foreign(config: RunConfig) -> None:
    """Raise ConfigError where labels of another task would be taken for the devices' classes."""
    if config.public.foreign and not getattr(config.method.params, "transfer", False):
        raise ConfigError(
            f"public.foreign lets labels of another task in, but {config.method.name} would take them for the devices'"
            " classes; leave it out, or use fedconv with transfer = true"
        )


def _initial(config: RunConfig, module: torch.nn.Module, spec: ModelSpec) -> Tensors:
    """Weights drawn from the seed, or those of the config's file; a classifier of other classes stays drawn."""
    drawn = initial_weights(module)
    if config.model.weights is None:
        return drawn
    matrix = classifier_matrix(spec)
    layer = "" if matrix is None else matrix.rpartition(".")[0] + "."
    fresh = [name for name in drawn if layer and name.startswith(layer) and drawn[name].shape[:1] == (spec.classes,)]
    return start_from(config.model.weights, drawn, fresh=(*fresh, *zoo.adapter_names(module)))


def make_run_data(config: RunConfig, spec: ModelSpec, class_names: tuple[str, ...]) -> RunData:
    """What devices must know of a run's data to bring theirs into its form."""
    listed = isinstance(config.model.classes, tuple)
    dtype = str(model_inputs(zoo.create(spec, seed=0), spec)[0].dtype)
    return RunData(class_names, listed, dtype, spec.classes, spec.goal)
