"""The suite of all methods names every one, and each of its configs is valid."""

from pathlib import Path

import pytest

from fedwright.benchmarks.harness.search import FIRST_SEED, chosen, trials_of, with_trial
from fedwright.benchmarks.harness.suite import read_suite, seeds_of
from fedwright.benchmarks.suites.methods import job_config, jobs_of
from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.simulation.simulate import simulate
from helpers.simulation import make_config

FOUND = read_suite("methods", quick=True)


def test_no_method_is_left_out() -> None:
    assert FOUND["methods"].keys() == METHODS.keys()


@pytest.mark.parametrize("name", sorted(FOUND["methods"]))
def test_a_method_has_a_valid_config(name: str) -> None:
    config = config_from_dict(job_config(FOUND, name), where=name)

    assert config.method.name == name
    assert config.public.rows == 300


def test_every_method_is_tried_as_often_and_its_trials_are_valid_configs() -> None:
    trials = [(job, trials_of(FOUND["search"], job.name)) for job in jobs_of(FOUND, seed=1)]

    assert {len(own) for _, own in trials} == {FOUND["search"]["trials"]}
    for job, own in trials:
        for trial in own:
            config_from_dict(with_trial(job, trial).config, where=job.name)


def test_reported_seeds_are_never_searched_and_what_was_chosen_belongs_to_methods() -> None:
    full = read_suite("methods", quick=False)

    assert max(seeds_of(full["suite"], None)) < FIRST_SEED
    assert chosen("methods").keys() <= METHODS.keys()


def test_a_model_may_be_named_with_its_width(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=1, model={"model": "cnn-gn@0.25"}, method={"name": "fedavg"})
    found = simulate(config, text)

    assert {record.width for record in found.outcome.devices.values()} == {0.25}


def test_submodels_are_cut_from_whole_models_only(tmp_path: Path) -> None:
    config, text = make_config(tmp_path, rounds=1, model={"model": "cnn-gn@0.25"}, method={"name": "heterofl"})

    with pytest.raises(ConfigError, match="cut from the whole of cnn-gn"):
        simulate(config, text)
