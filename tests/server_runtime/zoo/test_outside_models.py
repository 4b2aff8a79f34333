"""Models that installed packages offer."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.check_run import own_models
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.model_names import resolve
from fedwright.server_runtime.spec import ModelSpec
from helpers.outside_package import example, installed

__all__ = ["example", "installed"]

PLACE = "python:my_package.two_layers:make"
DATA = ModelSpec("", (2,), 3)


def test_a_model_of_a_package_is_made_from_where_it_lies(example: Path) -> None:
    spec = zoo.named("two-layers", DATA)

    assert spec == replace(DATA, model=PLACE)
    assert [tuple(value.shape) for value in zoo.create(spec, seed=1).parameters()] == [(16, 2), (16,), (3, 16), (3,)]


def test_it_can_be_cut_like_any_other(example: Path) -> None:
    half = zoo.named("two-layers@0.5", DATA)

    assert [tuple(value.shape) for value in zoo.create(half, seed=1).parameters()] == [(8, 2), (8,), (3, 8), (3,)]
    assert zoo.named(zoo.spelled(half), DATA) == half


def test_names_of_ours_and_references_stay_as_they_are(example: Path) -> None:
    assert [resolve(name) for name in ("lenet", "lenet@0.5", f"{PLACE}@0.5")] == ["lenet", "lenet@0.5", f"{PLACE}@0.5"]


def test_a_config_may_name_it_wherever_it_may_name_a_model(example: Path) -> None:
    text = '[method]\nname = "fedmd"\n[method.own]\nmodels = ["mlp", "two-layers@0.5"]\n[model]\nmodel = "two-layers"\n'

    assert own_models(config_from_text(text, where="run.toml")) == {PLACE, f"{PLACE}@0.5"}
    with pytest.raises(ConfigError, match=r"there is no model 'two-layer'; did you mean 'two-layers'\?"):
        config_from_text('[method]\nname = "fedavg"\n[model]\nmodel = "two-layer"\n', where="run.toml")
