"""`fedwright validate`: finds what `fedwright server run` and `fedwright simulate` would find in a config."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedwright.device_runtime.emulate.profiles import load_fleet
from fedwright.protocol.errors import ConfigError, FedwrightError
from fedwright.protocol.goals import GOALS
from fedwright.protocol.messages import Report
from fedwright.server_runtime.check_run import assumed, check_hidden, check_method, check_server, own_models
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.methods.registry import find
from fedwright.server_runtime.model_names import resolve
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.datasets import DATASETS, available
from fedwright.simulation.dealing import Dealt, deal, reserve
from fedwright.simulation.partition import Share

# What decides whether a model and a method go together.
FITTING = ("method", "model", "update", "public", "server", "budget")
# Settings of [train] that do so too; the others are numbers.
PARTS = ("trainable", "frozen")
STAND_IN_ROWS = 32


def check_config(config: RunConfig, starter: RunConfig) -> list[str]:
    """Raise what would end a run; returns what one should know besides.

    starter: the config that `init` writes for the method. What was left as it is there is known to go together, so
    torch is needed only for the rest; and a section [simulate] that was left, or left out, is perhaps meant for nobody,
    so what does not suit it is no error.
    """
    check_server(config)
    notes = []
    if find(config.method.name).needs_public and not config.public.given:
        notes.append(f"{config.method.name} over a broker needs public.file; public.rows is for `fedwright simulate`")
    if config.simulate not in (starter.simulate, SimulateSection()):
        return notes + check_simulation(config)
    fitting = all(getattr(config, name) == getattr(starter, name) for name in FITTING)
    if fitting and all(getattr(config.train, name) == getattr(starter.train, name) for name in PARTS):
        return notes
    try:
        return notes + check_simulation(config)
    except FedwrightError as err:
        if config.model.input_shape is None and resolve(config.model.model) in own_models(config):
            raise
        check_stand_in(config)
        return [*notes, f"`fedwright simulate` would not run: {err}"]


def _reports(config: RunConfig, dealt: Dealt) -> dict[str, Report]:
    # Not at the top: it brings torch, which most configs are checked without.
    from fedwright.simulation.simulate import make_reports

    return make_reports(config, dealt)


def check_simulation(config: RunConfig) -> list[str]:
    """Raise what would end a simulation; returns what could not be looked at."""
    check_hidden(config, config.simulate.devices, setting="simulate.devices")
    found = try_dealing(config)
    if found is None:
        check_stand_in(config)
        return [f"data set {config.simulate.dataset} is downloaded when it is used; it was not looked at"]
    dealt, public = found
    check_method(config, _suited(config, dealt), public, reports=_reports(config, dealt))
    return []


def check_stand_in(config: RunConfig) -> None:
    """Raise what would end a run on devices whose data is not here; random numbers of its shape stand in for it."""
    from fedwright.server_runtime import zoo

    spec = assumed(config)
    entry = zoo.MODELS.get(spec.model.partition("@")[0])
    rows = max(config.public.rows, 2 * STAND_IN_ROWS, 2 * spec.classes)
    x = np.random.default_rng(0).random((rows, *spec.input_shape), np.float32)
    if entry is not None and entry.kind == "tokens":
        x = np.zeros(x.shape, np.int64)
    y = stand_in_labels(rows, spec)
    half = rows // 2
    shares = {f"device-{n}": Share(np.arange(half), np.empty(0, np.int64), np.arange(half, rows)) for n in range(2)}
    public = None
    if not config.public.given and config.public.rows:
        public = PublicData(x, y if config.public.labelled else None)
    config = replace(config, simulate=replace(config.simulate, profiles=None, bystanders=0))
    reports = _reports(config, Dealt(x, y, spec.classes, shares, goal=spec.goal))
    check_method(config, spec, public, reports=reports)


def stand_in_labels(rows: int, spec: ModelSpec) -> np.ndarray[Any, Any]:
    """Labels of the kind that the model is for; how many places a sample has is not known, so it has one."""
    goal = GOALS[spec.goal]
    if goal.numbers:
        return np.zeros((rows, spec.classes), np.float32)
    classes = np.arange(rows) % spec.classes
    return classes[:, None] if goal.everywhere else classes


def try_dealing(config: RunConfig) -> tuple[Dealt, PublicData | None] | None:
    """The data as a simulation would deal it; None when it would have to be downloaded first."""
    if config.simulate.profiles is not None:
        load_fleet(config.simulate.profiles)
    if config.simulate.data is None and config.simulate.dataset in DATASETS:
        info = next(info for info in available() if info.name == config.simulate.dataset)
        if info.place is None and info.downloadable:
            return None
    dealt = deal(config.simulate, seed=config.run.seed, public=config.public, goal=config.model.goal)
    return reserve(dealt, config.public, seed=config.run.seed)


def _suited(config: RunConfig, dealt: Dealt) -> ModelSpec:
    """What the model must be made for; an error when the config says otherwise."""
    shape, source = config.model.input_shape, config.simulate.data or config.simulate.dataset
    if shape is not None and shape != dealt.input_shape:
        raise ConfigError(
            f"model.input_shape is {list(shape)} but {source} has samples of shape"
            f" {list(dealt.input_shape)}; leave it out or choose other data"
        )
    classes = config.model.class_count
    if classes is not None and classes < dealt.classes:
        raise ConfigError(f"model.classes is {classes} but {source} has {dealt.classes}; leave it out or raise it")
    model = config.model
    return ModelSpec(model.model, dealt.input_shape, classes or dealt.classes, goal=model.goal, loss=model.loss)
