"""pFedClub and its relatives: teachers within their limits, and what happens where there can be none."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary, Refusal, Report, Stats
from fedwright.protocol.predictor import Prediction
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.blocks.pfedclub.stitch_tuning import agreement
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate
from fedwright.server_runtime.methods.baselines.pfedhr import PFedHR
from fedwright.server_runtime.methods.params.personal_models import PersonalModelParams, PFedClubParams, PFedHRParams
from fedwright.server_runtime.methods.pfedclub import PFedClub
from fedwright.server_runtime.methods.shared import teacher_search
from fedwright.server_runtime.methods.shared.budget_fit import cost_of, memory_of
from fedwright.server_runtime.methods.shared.teachers import BoardLimits, TeacherMethod, load
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.spec import ModelSpec, Objective
from helpers.fleet import report, setting

SHAPE, CLASSES = (1, 16, 16), 4
MODELS = ("cnn1@0.5", "cnn2@0.5", "cnn3@0.125", "mobilenet-v1@0.0625")
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


def said(**changes: Any) -> Report:
    data = DataSummary(samples=24, holdout=8, input_shape=list(SHAPE), classes=CLASSES, class_counts=[6] * 4)
    return report(data=data, **{"free_bytes": 10**12, **changes})


def make(
    params: Any = None,
    *,
    model: str = "cnn1@0.5",
    shape: tuple[int, int, int] = SHAPE,
    labelled: bool = True,
    kind: Any = PFedClub,
    **changes: Any,
) -> Any:
    spec = zoo.named(model, ModelSpec("", shape, CLASSES))
    rng = np.random.default_rng(3)
    public = PublicData(rng.random((24, *shape), np.float32), np.arange(24) % CLASSES if labelled else None)
    initial = initial_weights(zoo.create(spec, seed=1))
    params = params or PFedClubParams(PersonalModelParams(MODELS), most=4, rows=16, tune_epochs=1)
    return kind(params, setting(spec=spec, initial=initial, public=public, **changes))


def play(method: TeacherMethod, reports: dict[str, Report], number: int = 1) -> dict[str, float]:
    """A round in which every device's weights move a little, each its own way."""
    for device, assignment in sorted(method.assign(reports, number).items()):
        rng = np.random.default_rng([number, *device.encode()])
        weights = method.emit(device, assignment).weights
        moved = {n: 0.01 * rng.standard_normal(v.shape).astype(np.float32) for n, v in weights.items()}
        method.absorb(device, CheckedUpdate(moved, STATS, assignment))
    return method.advance()


FLEET = {f"d-{n}": said() for n in range(4)}


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "unlabelled"])
def test_everyone_gets_a_teacher_made_of_others_blocks(labelled: bool) -> None:
    method = make(labelled=labelled)
    metrics = play(method, FLEET)
    assert metrics["teachers"] >= 3
    for device, plan in method.assign(FLEET, 2).items():
        teacher = plan.structure.objective.teacher
        assert (teacher is not None) == (device in method.teachers)
        if teacher is not None:
            sides = method.emit(device, plan).sides
            assert {n.removeprefix("teacher/") for n in sides} == initial_weights(zoo.create(teacher, seed=0)).keys()


@pytest.mark.parametrize("eta", [0.1, -0.2])
def test_no_teacher_is_larger_than_the_limit(eta: float) -> None:
    method = make(PFedClubParams(PersonalModelParams(MODELS), most=4, rows=16, tune_epochs=0, eta=eta))
    changes = []
    for number in (1, 2, 3):
        play(method, FLEET, number)
        changes += [method.size_change(device) for device in method.teachers]
    assert changes
    assert max(changes) <= eta


def test_without_a_candidate_within_the_limit_a_device_goes_on_alone() -> None:
    method = make(PFedClubParams(PersonalModelParams(MODELS), most=4, rows=16, tune_epochs=0, eta=-0.999))
    assert play(method, FLEET)["teachers"] == 0
    assert all(plan.structure.objective.teacher is None for plan in method.assign(FLEET, 2).values())


def test_models_that_cannot_be_cut_get_no_teacher_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    own = PersonalModelParams(MODELS, {"d-1": "python:helpers.own_module:make_branching"})
    method = make(PFedClubParams(own, most=4, rows=16, tune_epochs=0))
    with caplog.at_level(logging.WARNING):
        play(method, FLEET)
        play(method, FLEET, 2)
    assert "d-1" in method.specs
    assert "d-1" not in method.teachers
    assert not any("branching" in teacher.spec.model for teacher in method.teachers.values())
    (record,) = caplog.records
    assert record.getMessage().startswith("device d-1 lends no blocks and gets no teacher: its model python:helpers")
    assert (record.__dict__["device"], record.__dict__["fate"]) == ("d-1", "kept whole")


def test_blocks_are_compared_on_examples_of_all_classes_of_a_sorted_file() -> None:
    method = make()
    y = np.repeat(np.arange(CLASSES), 6)
    x = np.zeros((24, *SHAPE), np.float32) + y[:, None, None, None]
    method.setting = replace(method.setting, public=PublicData(x, y))
    assert set(method.public_y[: method._params.rows].tolist()) == set(range(CLASSES))
    # Each example keeps its own label.
    np.testing.assert_array_equal(method.public_x[:, 0, 0, 0].numpy(), method.public_y.numpy())


@pytest.mark.parametrize(("finalists", "most"), [(None, 4), (1, 1)], ids=["all", "one"])
def test_all_candidates_are_tuned_unless_told_otherwise(
    finalists: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[int] = []

    def tune(found: list[Any], *rest: Any, **more: Any) -> None:
        tuned.append(len(found))

    monkeypatch.setattr(teacher_search, "tune", tune)
    play(make(PFedClubParams(PersonalModelParams(MODELS), most=4, rows=16, finalists=finalists)), FLEET)
    assert max(tuned) == most


def test_the_teacher_is_the_tuned_candidate_that_answers_most_like_the_device() -> None:
    method = make(PFedClubParams(PersonalModelParams(MODELS), most=4, rows=16, tune_epochs=2))
    play(method, FLEET)
    pupils = {device: method.pupil(device) for device in FLEET}
    made = method.make_teachers(pupils, {device: BoardLimits(1, 10**12) for device in FLEET})
    assert max(len(ranked) for ranked in made.values()) > 1
    for device, ranked in made.items():
        alike = []
        for teacher in ranked:
            module = zoo.create(teacher.spec, seed=0).eval()
            load(module, teacher.weights)
            with torch.no_grad():
                alike.append(agreement(pupils[device].logits, module(method.public_x)))
        # Eq. 4 over all of them, each as it is after tuning.
        assert alike == pytest.approx(sorted(alike, reverse=True), abs=1e-5)


def test_a_fleet_of_one_has_nobody_to_learn_from_but_itself() -> None:
    method = make()
    play(method, {"d-0": said()})
    for teacher in method.teachers.values():
        assert "cnn1@0.5#" in teacher.spec.model


def test_a_users_own_module_takes_part_with_its_blocks() -> None:
    own = PersonalModelParams(("cnn1@0.5", "python:helpers.own_module:make"))
    method = make(PFedClubParams(own, groups=2, most=6, rows=16, tune_epochs=0))
    for number in range(1, 5):
        play(method, FLEET, number)
        names = [teacher.spec.model for teacher in method.teachers.values()]
        if any("own_module" in name and "cnn1" in name for name in names):
            return
    pytest.fail("no teacher ever had blocks of both models")


def test_a_device_without_the_memory_for_a_teacher_gets_none() -> None:
    builder = Builder()
    method = make(manifest=lambda structure: builder.build(structure).manifest)
    plans = method.assign({"d-0": said(), "d-1": said()}, 1)
    alone = {device: memory_of(method.setting, plan) for device, plan in plans.items()}
    play(method, {"d-0": said(), "d-1": said(free_bytes=alone["d-1"])})
    assert sorted(method.teachers) == ["d-0"]
    plans = method.assign({"d-0": said(free_bytes=alone["d-0"]), "d-1": said()}, 2)
    assert [plan.structure.objective.teacher for plan in plans.values()] == [None, None]


class Slow:
    """A device that takes a second for each convolution of a graph."""

    def predict(self, device: str, manifest: Manifest, *, batch: int, part: int | None = None) -> Prediction:
        calls = sum(values[0] for kind, values in manifest.work.items() if kind.startswith("Conv"))
        return Prediction(calls, calls, calls)

    def bytes_per_s(self, device: str) -> None:
        return None


def test_a_step_that_would_take_too_long_leaves_the_teacher_out() -> None:
    builder = Builder()
    method = make(manifest=lambda structure: builder.build(structure).manifest, forecasts=Slow())
    play(method, {"d-0": said(), "d-1": said()})
    assert "d-0" in method.teachers
    plan = method.assign({"d-0": said()}, 2)["d-0"]
    alone_s = cost_of(method.setting, "d-0", report=said(), assignment=plan_without(plan)).seconds
    taught_s = cost_of(method.setting, "d-0", report=said(), assignment=plan).seconds
    assert alone_s < taught_s
    limited = method.assign({"d-0": said(round_s=(alone_s + taught_s) / 2)}, 2)["d-0"]
    assert limited.structure.objective.teacher is None
    roomy = method.assign({"d-0": said(round_s=taught_s)}, 2)["d-0"]
    assert roomy.structure.objective.teacher is not None


def test_the_search_itself_keeps_to_the_seconds_of_a_round() -> None:
    builder = Builder()
    params = PFedClubParams(PersonalModelParams(("cnn1@0.5", "cnn3@0.125")), most=8, rows=16, tune_epochs=0)
    method = make(params, manifest=lambda structure: builder.build(structure).manifest, forecasts=Slow())
    plans = method.assign({"d-0": said(), "d-1": said()}, 1)
    alone_s = cost_of(method.setting, "d-0", report=said(), assignment=plans["d-0"]).seconds
    pupils = {device: method.pupil(device) for device in plans}
    own, longer = pupils["d-0"].chain, pupils["d-1"].chain
    mixed = (longer[0], *own[1:])
    known = BoardLimits(1, 10**12)

    def allowed(round_s: float | None) -> list[bool]:
        method.reports["d-0"] = said(round_s=round_s)
        search = method._limits(pupils["d-0"], pupils, known)
        constraint = teacher_search.allowed_chains(search, own, params, shape)
        return [constraint(chain) for chain in (mixed, longer)]

    shape = method.setting.spec.input_shape
    seconds = [method._teacher_seconds("d-0", pupils, 0.0).of(chain, shape) for chain in (mixed, longer)]
    assert 0 < seconds[0] < seconds[1]
    assert allowed(None) == [True, True]
    assert allowed(alone_s + sum(seconds) / 2) == [True, False]
    assert allowed(alone_s) == [False, False]


def plan_without(plan: Assignment) -> Assignment:
    """The same plan without a teacher."""
    return replace(plan, structure=replace(plan.structure, objective=Objective()))


def test_a_refused_teacher_is_left_at_home() -> None:
    method = make()
    play(method, FLEET)
    device = sorted(method.teachers)[0]
    plan = method.assign(FLEET, 2)[device]
    less = method.shrink(device, plan, Refusal("t", "over_budget", "too much", 2, 1))
    assert less == replace(plan, structure=replace(plan.structure, objective=less.structure.objective))
    assert less.structure.objective.teacher is None
    assert not method.emit(device, less).sides
    assert method.shrink(device, less, Refusal("t", "over_budget", "too much", 2, 1)) is None


def test_devices_have_the_models_they_name() -> None:
    method = make(PFedClubParams(PersonalModelParams(MODELS, {"d-2": "cnn2"})))
    method.assign({"d-0": said(), "d-1": said(model="cnn3@0.25"), "d-2": said(model="cnn1")}, 1)
    like = method.setting.spec
    assert method.specs == {
        "d-0": zoo.named("cnn1@0.5", like),
        "d-1": zoo.named("cnn3@0.25", like),
        "d-2": zoo.named("cnn2", like),
    }


@pytest.mark.parametrize("model", ["python:os:system", "cnn9", "lenet@2"])
def test_a_model_that_the_server_cannot_give_leaves_the_device_out(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    method = make()
    with caplog.at_level(logging.WARNING):
        plans = method.assign({"d-0": said(), "d-1": said(model=model)}, 1)
        method.assign({"d-0": said(), "d-1": said(model=model)}, 2)
    assert list(plans) == ["d-0"]
    assert len(caplog.messages) == 1
    assert "d-1" in caplog.messages[0]
    assert method.model_of("d-1")[0] == method.setting.spec


def test_a_model_of_the_config_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unknown model 'cnn9'"):
        make(PFedClubParams(PersonalModelParams(("cnn9",))))


def test_without_public_examples_it_says_how_to_give_some() -> None:
    method = make()
    method.setting = replace(method.setting, public=None)
    with pytest.raises(ConfigError, match=r"pfedclub needs examples on the server; set public\.file"):
        method.assign(FLEET, 1)


@pytest.mark.parametrize(
    "bad",
    [{"groups": 0}, {"eta": -1.0}, {"most": 0}, {"rows": 1}, {"temperature": 0.0}, {"tune_batch": 1}, {"finalists": 0}],
    ids=str,
)
def test_bad_parameters_are_named(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        PFedClubParams(**bad)


@pytest.mark.parametrize("bad", [{"tune_epochs": -1}, {"longest": 1}, {"candidates": 0}], ids=str)
def test_bad_parameters_of_pfedhr_are_named(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        PFedHRParams(**bad)


def test_pfedhr_teaches_all_from_the_same_models_without_a_limit() -> None:
    params = PFedHRParams(PersonalModelParams(MODELS), rows=16, tune_epochs=1)
    method = make(params, kind=PFedHR)
    play(method, FLEET)
    assert len(method.teachers) == 4
    names = {teacher.spec.model for teacher in method.teachers.values()}
    assert all(name.startswith("dense:") and name.endswith("|classes") for name in names)
    assert all(params.least + 1 <= name.count("|") + 1 <= params.longest + 1 for name in names)
    assert max(method.size_change(device) for device in method.teachers) > 0.1
