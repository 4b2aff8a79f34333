"""FRAMP: parts that fit, bytes on the wire, new devices, ablations, odd descriptors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from numpy.typing import NDArray

from fedwright.protocol import deltas
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary, Refusal, Report, Stats
from fedwright.protocol.predictor import need_bytes
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.artifacts.classifier import classifier_matrix
from fedwright.server_runtime.methods.base import CheckedUpdate
from fedwright.server_runtime.methods.framp.method import Framp
from fedwright.server_runtime.methods.framp.params import FrampParams
from fedwright.server_runtime.methods.shared.submodels import count_params
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure
from fedwright.simulation.simulate import simulate
from helpers.fleet import report, setting
from helpers.present import present
from helpers.simulation import make_config

SPEC = ModelSpec("cnn-gn", (1, 8, 8), 4)
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
WORDS = {"d-0": [1.0, 0.0, 2.0], "d-1": [1.0, 3.0, 2.5], "d-2": [1.0, 1.0, 2.1], "d-3": [1.0, 0.5, 2.2]}
SIZES = (1.0, 0.25, 0.0625, 1 / 64)


def make(**changes: Any) -> Framp:
    initial = initial_weights(zoo.create(SPEC, seed=1))
    return Framp(FrampParams(**{"align": 0.0, "sizes": SIZES, **changes}), setting(spec=SPEC, initial=initial))


def reports(**more: Any) -> dict[str, Report]:
    described = {**WORDS, **more}
    return {
        device: report(data=DataSummary(24, 8, [1, 8, 8], 4, class_counts=[6] * 4, descriptor=row))
        for device, row in described.items()
    }


def play(method: Framp, changes: dict[str, float], number: int = 1) -> None:
    """A round in which devices move the entries they were sent by so much."""
    assignments = method.assign(reports(), number)
    emissions = {device: method.emit(device, assignment) for device, assignment in assignments.items()}
    for device, change in changes.items():
        emission = emissions[device]
        sent = {
            name: np.where(emission.masks.get(name, np.ones(value.shape, bool)), change, 0).astype(np.float32)
            for name, value in emission.weights.items()
        }
        method.absorb(device, CheckedUpdate(sent, STATS, assignments[device]))
    method.advance()


def maskable(weights: dict[str, NDArray[Any]]) -> list[str]:
    return [name for name, value in weights.items() if value.ndim > 1]


@pytest.mark.parametrize(("device", "share"), list(zip(WORDS, SIZES, strict=True)), ids=[f"{s:g}" for s in SIZES])
def test_a_device_gets_exactly_its_share(device: str, share: float) -> None:
    method = make()
    emission = method.emit(device, method.assign(reports(), 1)[device])
    whole = sum(value.size for name, value in emission.weights.items() if value.ndim > 1)
    kept = sum(int((emission.weights[name] != 0).sum()) for name in maskable(emission.weights))
    assert kept == int(share * whole)
    assert all(np.count_nonzero(emission.weights[name]) for name in maskable(emission.weights))


@pytest.mark.parametrize(("device", "share"), [("d-1", 0.25), ("d-3", 1 / 64)], ids=["1/4", "1/64"])
def test_bytes_down_are_values_and_indices_and_bytes_up_are_values(device: str, share: float) -> None:
    method = make()
    emission = method.emit(device, method.assign(reports(), 1)[device])
    down = deltas.encode(emission.weights, keep=emission.masks)
    up = deltas.encode(emission.weights, keep=emission.masks, implied=True)

    total = sum(emission.weights[name].size for name in emission.masks)
    values = 4 * int(share * total) + sum(4 * v.size for n, v in emission.weights.items() if n not in emission.masks)
    header = 200 * len(emission.weights)
    assert 0.85 * values < len(up) < values + header
    # a bit per entry at most; below 1/32 gaps of a byte or two are shorter
    indices = total / 8 if share > 1 / 32 else 2 * share * total
    assert len(up) < len(down) < values + indices + header


def test_only_what_was_sent_changes() -> None:
    method = make(sizes=(0.25,))
    method.assign(reports(), 1)
    before = dict(method._made["d-0"])
    masks = method.emit("d-0", method.assign(reports(), 1)["d-0"]).masks
    play(method, {"d-0": 0.1})
    method.assign(reports(), 2)
    after = method._made["d-0"]
    for name, mask in masks.items():
        assert not np.allclose(after[name][mask], before[name][mask], atol=1e-3)
        np.testing.assert_allclose(after[name][~mask], before[name][~mask], atol=2e-3)


def test_a_change_brings_the_model_nearer_to_the_devices_own() -> None:
    method = make(sizes=(1.0,))
    method.assign(reports(), 1)
    before = dict(method._made["d-0"])
    play(method, {"d-0": 0.1})
    method.assign(reports(), 2)
    moved = [method._made["d-0"][name] - before[name] for name in maskable(before)]
    # ||h|| = 1 and a step of one land on the result of the only device
    assert all(np.allclose(value, 0.1, atol=5e-3) for value in moved)


def test_a_device_that_never_trained_gets_the_model_of_its_likes() -> None:
    method = make(sizes=(1.0,), server_rate=0.5)
    for number in range(1, 4):
        play(method, {"d-0": 0.1, "d-1": -0.1}, number)
    method.meet(reports(new=[1.0, 0.1, 2.0]))
    mean = {device: method.model_of(device)[1]["head.weight"].mean() for device in ("d-0", "d-1", "new")}
    assert abs(mean["new"] - mean["d-0"]) < abs(mean["new"] - mean["d-1"])


def test_the_union_model_is_whole_and_lies_between() -> None:
    method = make()
    play(method, {"d-0": 0.1, "d-1": -0.1})
    spec, union = method.model_of("")
    assert spec == SPEC
    assert all((union[name] != 0).all() for name in maskable(union))


def test_a_stranger_gets_its_part_of_the_union_model() -> None:
    method = make()
    play(method, {"d-0": 0.1, "d-1": -0.1})
    part, union = method.part("stranger-2"), method.part("")
    kept = {name: part[name] != 0 for name in maskable(part)}
    assert sum(int(mask.sum()) for mask in kept.values()) == int(SIZES[2] * sum(mask.size for mask in kept.values()))
    for name, mask in kept.items():
        np.testing.assert_array_equal(part[name][mask], union[name][mask])


def test_a_model_without_its_dead_channels_computes_the_same() -> None:
    method = make(least=0.0)
    play(method, {"d-0": 0.1})
    spec, small = method.model_of("d-3")
    whole = method.part("d-3")
    assert dict(spec.sizes)["fc1"] < 64
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    logits = []
    for own_spec, weights in ((spec, small), (SPEC, whole)):
        model = zoo.create(own_spec, seed=0)
        model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
        logits.append(model(x).detach())
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-4)


def test_every_layer_keeps_a_part_of_its_own_share() -> None:
    """Without that, the wide layer of a small device is cut off: its entries are small by nature."""
    kept = []
    for least in (0.0, 0.5):
        method = make(least=least)
        masks = method.emit("d-3", method.assign(reports(), 1)["d-3"]).masks
        kept.append(int(masks["encoder.fc1.1.weight"].sum()))
    # 206 of 13200 entries, one for each of four layers, and half of the rest by size
    assert kept[0] < kept[1] == 1 + int(0.5 * (206 - 4) * 64 * 128 / 13200)


def test_an_entry_follows_those_who_had_it() -> None:
    """d-0 has everything, d-3 little: where both train, their mean counts; elsewhere d-0 alone, and not half of it."""
    method = make(own=1e-6)
    method.assign(reports(), 1)
    before = {d: dict(method._made[d]) for d in ("d-0", "d-3")}
    masks = method.emit("d-3", method.assign(reports(), 1)["d-3"]).masks["head.weight"]
    play(method, {"d-0": 0.1, "d-3": 0.3})
    method.assign(reports(), 2)
    moved = method._made["d-0"]["head.weight"] - before["d-0"]["head.weight"]
    np.testing.assert_allclose(moved[masks], 0.2, atol=2e-3)
    np.testing.assert_allclose(moved[~masks], 0.1, atol=2e-3)


def test_a_descriptor_is_learnt_every_few_rounds() -> None:
    method = make(describe="updated", update_every=2, sizes=(1.0,))
    method.assign(reports(), 1)
    first = method._descriptors.rows(list(WORDS))
    for number in (1, 2):
        np.testing.assert_array_equal(method._descriptors.rows(list(WORDS)), first)
        play(method, {"d-0": 0.1, "d-1": -0.1}, number)
    moved = np.linalg.norm(method._descriptors.rows(list(WORDS)) - first, axis=1)
    assert (moved[:2] > 0).all()
    assert (moved <= 0.1001 * np.linalg.norm(first, axis=1)).all()
    assert not moved[2:].any()


def test_a_learnt_projection_begins_as_none_and_learns() -> None:
    plain, projected = make(sizes=(1.0,)), make(sizes=(1.0,), project=4, server_rate=0.5)
    for method in (plain, projected):
        play(method, {})
    np.testing.assert_allclose(projected.part("d-0")["head.weight"], plain.part("d-0")["head.weight"], atol=5e-3)
    play(projected, {"d-0": 0.1}, 2)
    state = projected.state()
    narrow = make(sizes=(1.0, 0.25), project=4, server_rate=0.5)
    emission = narrow.emit("d-1", narrow.assign(reports(), 1)["d-1"])
    # In place of a mask: a dense model of half the channels.
    assert not emission.masks
    assert emission.weights["head.weight"].shape == (4, 32)
    assert np.abs(state.tensors["hypernet/project.out"]).max() > 1e-3


def test_the_mask_gradient_reads_the_least_entry_that_was_kept() -> None:
    method = make(mask_gradient=True)
    assignment = method.assign(reports(), 1)["d-1"]
    emission = method.emit("d-1", assignment)
    kept = np.concatenate([np.abs(emission.weights[name][mask]) for name, mask in emission.masks.items()])
    assert assignment.structure.objective.fiarse
    assert emission.sides["threshold"] == kept.min()


def test_a_budget_chooses_the_largest_channels_that_fit() -> None:
    builder = Builder()
    whole = builder.build(Structure(SPEC, Objective())).manifest
    own = replace(
        setting(spec=SPEC, initial=initial_weights(zoo.create(SPEC, seed=1))),
        manifest=lambda structure: builder.build(structure).manifest,
    )
    method = Framp(FrampParams(sizes=(1.0, 0.25, 1 / 64), choose="budget", granularity="channel", align=0.0), own)
    room = {"d-0": 10**9, "d-1": need_bytes(whole, own.batch) - 1}
    described = {d: structs.replace(report, free_bytes=room.get(d, 10**9)) for d, report in reports().items()}
    assignments = method.assign(described, 1)
    assert assignments["d-0"].structure.spec == SPEC
    assert dict(assignments["d-1"].structure.spec.sizes) == {"conv1": 8, "conv2": 16, "fc1": 32}
    refusal = Refusal("task", "over_budget", "", 10**6, 1)
    offered = method.shrink("d-1", assignments["d-1"], refusal)
    assert count_params(present(offered).structure.spec) < count_params(assignments["d-1"].structure.spec)
    assert (
        method.emit("d-1", present(offered)).weights["head.weight"].shape[1]
        == dict(present(offered).structure.spec.sizes)["fc1"]
    )
    assert method.shrink("d-1", present(offered), refusal) is None


def test_without_personalisation_everyone_gets_the_same() -> None:
    method = make(personal=False, sizes=(1.0,))
    play(method, {"d-0": 0.1})
    one, two = (method.model_of(device)[1]["head.weight"] for device in ("d-0", "d-1"))
    np.testing.assert_array_equal(one, two)


def test_channels_make_the_model_really_smaller() -> None:
    method = make(granularity="channel", sizes=(1.0, 0.25, 0.0625))
    assignments = method.assign(reports(), 1)
    small = assignments["d-2"].structure.spec
    assert count_params(small) < 0.12 * count_params(SPEC)
    weights = method.emit("d-2", assignments["d-2"]).weights
    assert sum(value.size for value in weights.values()) == count_params(small)


def test_with_alignment_the_embedding_keeps_its_width() -> None:
    assignments = make(granularity="channel", align=0.7).assign(reports(), 1)
    assert dict(assignments["d-3"].structure.spec.sizes) == {"conv1": 2, "conv2": 4, "fc1": 64}


def test_the_classifier_is_found_by_what_it_does_and_not_by_its_place() -> None:
    """The last matrix of this model reads another group, so that embeddings came in other widths."""
    spec = ModelSpec("python:helpers.own_models:head_first", (1, 8, 8), 4)
    own = setting(spec=spec, initial=initial_weights(zoo.create(spec, seed=1)))
    method = Framp(FrampParams(sizes=(1.0, 0.25, 0.0625, 0.0625), granularity="channel"), own)
    weights = method.emit("d-3", method.assign(reports(), 1)["d-3"]).weights
    assert classifier_matrix(spec) == "answer.weight"
    assert weights["answer.weight"].shape == (4, 12)
    assert weights["first.weight"].shape == (4, 64)


def test_the_prototype_term_is_as_strong_as_printed() -> None:
    """λ Σ_c ||P_n^c - P^c||; as a mean per class and dimension it is C √h = 4 · 8 times weaker here."""
    printed, mean = make(align=0.7, align_by="sum"), make(align=0.7)
    found = [m.assign(reports(), 1)["d-0"].structure.objective.prototypes for m in (printed, mean)]
    assert found == pytest.approx([0.7, 0.7 / 32])


def test_prototypes_go_down_once_somebody_has_sent_them() -> None:
    method = make(align=0.7, sizes=(1.0,))
    assignments = method.assign(reports(), 1)
    first = method.emit("d-0", assignments["d-0"])
    assert not first.sides["prototype_owned"].any()
    counts = np.array([3, 0, 0, 1], np.float32)
    sent = {name: np.zeros_like(value) for name, value in first.weights.items()}
    sent |= {"prototypes": np.outer(counts > 0, np.ones(64)).astype(np.float32), "prototype_counts": counts}
    method.absorb("d-0", CheckedUpdate(sent, STATS, assignments["d-0"]))
    method.advance()
    second = method.emit("d-0", method.assign(reports(), 2)["d-0"])
    assert second.sides["prototype_owned"].tolist() == [1, 0, 0, 1]
    assert second.sides["prototypes"][0].tolist() == [1] * 64


@pytest.mark.parametrize(
    ("row", "words"),
    [([1.0, 2.0], "has 2 numbers"), ([1.0, float("nan"), 0.0], "finite ones"), (None, "sent no descriptor")],
    ids=["length", "nan", "none"],
)
@pytest.mark.parametrize("odd", ["aa", "zz"], ids=["first of all", "last of all"])
def test_an_odd_descriptor_leaves_its_device_out(
    caplog: pytest.LogCaptureFixture, row: list[float] | None, words: str, odd: str
) -> None:
    method = make()
    assert set(method.assign(reports(**{odd: row}), 1)) == set(WORDS)
    assert words in caplog.text
    np.testing.assert_array_equal(method.part(odd)["head.bias"], method.part("")["head.bias"])


def test_newcomers_cannot_outvote_those_who_were_there(caplog: pytest.LogCaptureFixture) -> None:
    method = make()
    method.assign(reports(), 1)
    odd = {f"aa-{number}": [1.0, 2.0] for number in range(len(WORDS) + 1)}
    assert set(method.assign(reports(**odd), 2)) == set(WORDS)
    assert "has 2 numbers, not 3" in caplog.text


def test_a_budget_below_one_value_per_tensor_is_refused() -> None:
    method = make(sizes=(1e-5,))
    with pytest.raises(ConfigError, match="below one value each"):
        method.emit("d-0", method.assign(reports(), 1)["d-0"])


def test_a_round_planned_by_another_process_is_absorbed_alike() -> None:
    whole, resumed = make(), make()
    assignments = whole.assign(reports(), 1)
    resumed.restore_planning(whole.planning_state())
    for method in (whole, resumed):
        for device, assignment in sorted(assignments.items()):
            sent = {name: np.full_like(value, 0.1) for name, value in whole.emit(device, assignment).weights.items()}
            method.absorb(device, CheckedUpdate(sent, STATS, assignment))
    for method in (whole, resumed):
        method.advance()
        method.meet(reports())
    for name, value in whole.state().tensors.items():
        np.testing.assert_array_equal(resumed.state().tensors[name], value)


@pytest.mark.parametrize(
    "changes",
    [
        {"granularity": "channel"},
        {"layerwise": True, "align": 0.0},
        {"describe": "one_hot", "disturb": "rotation"},
        {"describe": "classes", "personal": False, "disturb": "noise"},
        {"describe": "updated", "update_every": 1, "mask_gradient": True},
        {"project": 4, "server_rate": 0.5},
    ],
    ids=["channel", "layerwise", "one-hot", "shared", "updated", "projected"],
)
def test_variants_run_to_the_end(tmp_path: Path, changes: dict[str, float | str]) -> None:
    config, text = make_config(
        tmp_path,
        model={"model": "cnn-gn"},
        method={"name": "framp", "sizes": [1.0, 0.25], **changes},
        simulate={"rows": 120, "evaluate_every": 0},
    )
    assert all(record.rounds == 2 for record in simulate(config, text).outcome.devices.values())


@pytest.mark.parametrize("granularity", ["element", "channel"])
def test_a_model_with_batch_normalisation(tmp_path: Path, granularity: Any) -> None:
    config, text = make_config(
        tmp_path,
        model={"model": "python:helpers.own_models:cnn"},
        method={"name": "framp", "sizes": [1.0, 0.5], "granularity": granularity},
    )

    found = simulate(config, text)

    assert all(record.rounds == 2 for record in found.outcome.devices.values())
    assert len(found.evaluations[-1].devices) == 4
