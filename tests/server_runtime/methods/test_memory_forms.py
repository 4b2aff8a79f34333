"""A device short of memory does the same task in more time, where the run prefers that to a smaller model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from fedwright.protocol.messages import DataSummary, Recipe, Report
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile, need_bytes
from fedwright.protocol.support.settings import from_dict
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.fleet.speeds import Speeds
from fedwright.server_runtime.methods.base import Assignment, Setting
from fedwright.server_runtime.methods.registry import find
from fedwright.server_runtime.methods.shared.budget_fit import cost_of
from fedwright.server_runtime.methods.shared.memory_forms import leaner_forms
from fedwright.server_runtime.spec import ModelSpec, Objective, Optimizer, Structure
from helpers.fleet import report

BUILDER = Builder()
SPEC = ModelSpec("resnet8", (3, 32, 32), 10)
STRUCTURE = Structure(SPEC, optimizer=Optimizer(momentum=0.9))
RECIPE = Recipe(batch=32, learning_rate=0.1, seed=1)


def measured() -> bytes:
    """The profile of a board that takes 10 ns for a call and 1 ns for each operation and element."""
    row = dict.fromkeys(FEATURES, 0.0) | {"calls": 1e-8, "flops": 1e-9, "elements": 1e-9}
    return Profile("board", "runtime", 1, kinds={"Conv": list(row.values()), "Mul": list(row.values())}).to_json()


def manifest(structure: Structure) -> Any:
    return BUILDER.build(structure).manifest


def forms(structure: Structure = STRUCTURE) -> list[Assignment]:
    return list(leaner_forms(manifest, Assignment(structure, RECIPE)))


def given(method: str, params: Mapping[str, Any], one: Report, *, slower: bool = True) -> Assignment | None:
    entry = find(method)
    weights = initial_weights(zoo.create(SPEC, seed=1))
    born = Setting(SPEC, Optimizer(momentum=0.9), weights, 0.1, 32, 1, 3, manifest=manifest, slower=slower)
    made = entry.make(from_dict(entry.params, params, where="test"), born)
    data = DataSummary(64, 16, [3, 32, 32], 10, [6] * 10)
    return made.assign({"d-0": structs.replace(one, data=data)}, 1).get("d-0")


def memory(form: Assignment) -> int:
    return need_bytes(manifest(form.structure), form.recipe.at_once)


def test_each_form_takes_less_memory_than_the_one_before() -> None:
    found = [memory(form) for form in forms()]

    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.5 * found[0]
    assert [form.recipe.part for form in forms()] == [None, None, None, 16, 8, 4]


def test_models_without_normalisation_may_come_to_single_samples() -> None:
    lenet = replace(STRUCTURE, spec=ModelSpec("lenet", (1, 28, 28), 10))

    assert forms(lenet)[-1].recipe.part == 1


@pytest.mark.parametrize(
    ("structure", "count"),
    [
        pytest.param(replace(STRUCTURE, objective=Objective(envelope=1.0, envelope_steps=2, envelope_rate=1)), 2),
        pytest.param(replace(STRUCTURE, private=True, spec=ModelSpec("resnet8-gn", (3, 32, 32), 10)), 1),
    ],
    ids=["grouped steps are not parted", "hidden samples are left as they are"],
)
def test_what_cannot_be_parted_is_not(structure: Structure, count: int) -> None:
    assert len(forms(structure)) == count


LEVELS = {"levels": {"sizes": [1.0, 0.5], "choose": "budget"}}


@pytest.mark.parametrize(("method", "params"), [("fedavg", {}), ("heterofl", LEVELS)])
def test_the_whole_model_is_trained_more_slowly(method: str, params: Mapping[str, Any]) -> None:
    room = report(free_bytes=memory(forms()[3]), parts=True)

    found = given(method, params, room)
    narrow = given(method, params, room, slower=False)
    before = given(method, params, structs.replace(room, parts=False))

    assert found is not None
    assert narrow is not None
    assert found.structure.spec == SPEC
    assert found.recipe.batch == 32
    assert found.structure.parts
    assert narrow.structure.spec != SPEC or narrow.recipe.batch < 32
    # An agent of before knows nothing of parts.
    assert before == narrow


def test_seconds_of_a_step_in_parts_are_forecast() -> None:
    speeds = Speeds()
    one = report(profile=measured(), parts=True)
    speeds.hear("d-0", one)
    weights = initial_weights(zoo.create(SPEC, seed=1))
    born = Setting(SPEC, Optimizer(momentum=0.9), weights, 0.1, 32, 1, 3, manifest=manifest, forecasts=speeds)
    data = DataSummary(64, 16, [3, 32, 32], 10, [6] * 10)

    seconds = [
        cost_of(born, "d-0", report=structs.replace(one, data=data), assignment=form).seconds for form in forms()
    ]

    whole, halves, eighths = seconds[2], seconds[3], seconds[5]
    assert 0 < whole < halves < eighths < 1.5 * whole
