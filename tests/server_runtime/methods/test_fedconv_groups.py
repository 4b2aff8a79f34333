"""FedConv in groups: who is averaged before dilation, what a device's own model is, who trains through whom."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, MethodState, Relay, Tensors
from fedwright.server_runtime.methods.fedconv.exchange import linked_pairs
from fedwright.server_runtime.methods.fedconv.method import FedConv
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.methods.params.submodels import Levels
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting

SHAPE, CLASSES = (1, 8, 8), 3
EPOCHS: dict[str, Any] = dict.fromkeys(
    ("pretrain_epochs", "compress_epochs", "again_epochs", "dilate_epochs", "weigh_epochs"), 1
)
PARAMS = FedConvParams(levels=Levels(sizes=(0.5, 1.0), choose="in_turn"), server_batch=16, **EPOCHS)
REPORTS = {f"d-{number}": report() for number in range(4)}
HALVES, WHOLES = ("d-0", "d-2"), ("d-1", "d-3")
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


def make(**changes: Any) -> FedConv:
    """Two devices with half the channels, two with all."""
    rng = np.random.default_rng(2)
    data = PublicData(rng.normal(size=(24, *SHAPE)).astype(np.float32), np.arange(24) % CLASSES)
    spec = ModelSpec("cnn-small", SHAPE, CLASSES)
    initial = initial_weights(zoo.create(spec, seed=1))
    return FedConv(replace(PARAMS, **changes), setting(spec=spec, initial=initial, public=data))


def moved(weights: Tensors, seed: int) -> Tensors:
    """A change of all weights."""
    rng = np.random.default_rng(seed)
    return {name: (0.02 * rng.normal(size=value.shape)).astype(np.float32) for name, value in weights.items()}


def train(method: FedConv, plan: dict[str, Assignment], **told: Any) -> None:
    """Every device of a plan sends a change of its own."""
    for device, assignment in sorted(plan.items()):
        change = moved(method.emit(device, assignment).weights, int(device[-1]))
        method.absorb(device, CheckedUpdate(change, STATS, assignment, **told))


def as_plan(relays: list[Relay]) -> dict[str, Assignment]:
    return {relay.device: relay.assignment for relay in relays}


def test_clusters_of_an_edge_keep_their_own_aggregate_and_dilation() -> None:
    """The mean of two clusters and the two clusters apart are not the same to the host."""
    told, untold = make(), make()
    for method, labels in ((told, ("d-0", "d-2")), (untold, ("", ""))):
        plan = method.assign(REPORTS, 1)
        for device, label in zip(HALVES, labels, strict=True):
            change = moved(method.emit(device, plan[device]).weights, int(device[-1]))
            update = CheckedUpdate(change, STATS, plan[device], devices=(device,), cluster=label)
            method.absorb(device, update)
    assert told.advance()["groups"] == 2
    assert untold.advance()["groups"] == 1
    kernels = sorted(name for name in told.state().tensors if name.startswith("dilate/"))
    assert [name.rpartition("/")[2] for name in kernels] == ["d-0", "d-2"]
    one, other = (told.state().tensors[name] for name in kernels)
    assert not np.array_equal(one, other)
    assert not np.array_equal(told.weights["head.weight"], untold.weights["head.weight"])


@pytest.mark.parametrize(
    ("changes", "groups"), [({"group": "device"}, 4), ({"group": "ratio"}, 2), ({}, 2), ({"clusters": 2}, 4)], ids=str
)
def test_what_is_averaged_before_it_is_dilated(
    changes: dict[str, Any], groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two devices of a ratio are too few to be told apart by their silhouette.
    monkeypatch.setattr(
        "fedwright.server_runtime.methods.fedconv.groups.cluster",
        lambda layers, **_: {device: number for number, device in enumerate(sorted(layers))},
    )
    method = make(**changes)
    train(method, method.assign(REPORTS, 1))
    assert method.advance()["groups"] == groups


def test_devices_stay_in_their_cluster_until_a_new_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def cluster(layers: Any, **_: Any) -> dict[str, int]:
        made.append(sorted(layers))
        return dict.fromkeys(layers, 0)

    monkeypatch.setattr("fedwright.server_runtime.methods.fedconv.groups.cluster", cluster)
    method = make(clusters=2)
    for number in (1, 2):
        train(method, method.assign({name: REPORTS[name] for name in (*HALVES, "d-1")}, number))
        method.advance()
    again = make(clusters=2)
    again.restore(MethodState.read(method.state().to_bytes()))
    train(again, again.assign(REPORTS, 3))
    again.advance()
    assert made == [["d-0", "d-2"], ["d-1"], ["d-1", "d-3"]]


def test_a_devices_own_model_is_the_one_after_its_training() -> None:
    method = make()
    plan = method.assign(REPORTS, 1)
    sent = {device: method.emit(device, plan[device]).weights for device in plan}
    train(method, plan)
    method.advance()
    for device in REPORTS:
        spec, own = method.model_of(device)
        change = moved(sent[device], int(device[-1]))
        assert spec == plan[device].structure.spec
        np.testing.assert_allclose(own["head.weight"], sent[device]["head.weight"] + change["head.weight"], atol=1e-7)
        begin = method.start_of(device)[1]
        assert not np.array_equal(begin["head.weight"], own["head.weight"])
    np.testing.assert_array_equal(method.model_of("")[1]["head.weight"], method.weights["head.weight"])
    # One that has not trained yet has what it would begin with.
    assert method.model_of("d-9")[1] is method.start_of("d-9")[1]


def test_devices_that_an_edge_pooled_have_the_model_of_their_cluster() -> None:
    method = make()
    plan = method.assign(REPORTS, 1)
    change = moved(method.emit("d-0", plan["d-0"]).weights, 5)
    method.absorb("d-0", CheckedUpdate(change, STATS, plan["d-0"], devices=HALVES, cluster="d-0"))
    method.advance()
    one, other = (method.model_of(device)[1]["head.weight"] for device in HALVES)
    np.testing.assert_array_equal(one, other)


def test_own_models_can_be_left_out() -> None:
    method = make(keep_own=False)
    train(method, method.assign(REPORTS, 1))
    method.advance()
    assert method.model_of("d-0")[1] is method.start_of("d-0")[1]
    assert not any(name.startswith("own/") for name in method.state().tensors)


def test_linked_clusters_train_their_last_layers_through_each_other() -> None:
    method = make(exchange=True)
    train(method, method.assign(REPORTS, 1))
    relays = as_plan(method.pass_on())
    assert sorted(relays) == sorted(REPORTS)
    widths = {device: method.emit(device, relays[device]).weights["head.weight"].shape[1] for device in REPORTS}
    for device, other in (("d-0", "d-1"), ("d-1", "d-0")):
        assignment = relays[device]
        emission = method.emit(device, assignment)
        assert assignment.structure.spec.links == (widths[other],)
        assert sorted(emission.weights) == ["head.bias", "head.projection0", "head.weight"]
        assert emission.weights["head.projection0"].shape == (widths[other], widths[device])
        assert not emission.weights["head.projection0"].any()
        assert emission.frozen["head.other0"].shape == (CLASSES, widths[other])
        assert emission.passing
        # Devices of one cluster get the same, stored once.
        assert method.emit(device, assignment) is method.emit(f"d-{int(device[-1]) + 2}", assignment)
    train(method, relays)
    assert method.pass_on() == []
    method.advance()
    kept = sorted(name for name in method.state().tensors if name.startswith("project/"))
    assert kept == ["project/width-0.5000|width-1.0000", "project/width-1.0000|width-0.5000"]


def test_own_models_after_an_exchange_answer_as_the_devices_did() -> None:
    method = make(exchange=True)
    train(method, method.assign(REPORTS, 1))
    relays = as_plan(method.pass_on())
    emission = method.emit("d-0", relays["d-0"])
    train(method, relays)
    method.advance()

    linked = zoo.create(relays["d-0"].structure.spec, seed=0).eval()
    change = moved(emission.weights, 0)
    trained = {**emission.frozen, **{name: value + change[name] for name, value in emission.weights.items()}}
    linked.load_state_dict({name: torch.from_numpy(value) for name, value in trained.items()})
    spec, own = method.model_of("d-0")
    plain = zoo.create(spec, seed=0).eval()
    plain.load_state_dict({name: torch.from_numpy(value) for name, value in own.items()})
    x = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    assert not spec.links
    with torch.no_grad():
        torch.testing.assert_close(plain(x), linked(x), atol=1e-5, rtol=1e-4)


def test_projections_go_on_in_the_next_round() -> None:
    method = make(exchange=True)
    train(method, method.assign(REPORTS, 1))
    train(method, as_plan(method.pass_on()))
    method.advance()
    train(method, method.assign(REPORTS, 2))
    emission = method.emit("d-0", as_plan(method.pass_on())["d-0"])
    # The mean of what the two devices of the cluster made of zero.
    wanted = (moved(emission.weights, 0)["head.projection0"] + moved(emission.weights, 2)["head.projection0"]) / 2
    np.testing.assert_allclose(emission.weights["head.projection0"], wanted, atol=1e-6)


def test_a_server_that_stops_between_the_two_trainings_ends_the_same() -> None:
    method, other = make(exchange=True), make(exchange=True)
    train(method, method.assign(REPORTS, 1))
    relays = as_plan(method.pass_on())
    other.restore(MethodState.read(method.state().to_bytes()))
    for own in (method, other):
        train(own, relays)
        own.pass_on()
        own.advance()
    assert method.state().to_bytes() == other.state().to_bytes()


def test_what_was_absorbed_of_an_exchange_is_forgotten_by_a_restart() -> None:
    method, other = make(exchange=True), make(exchange=True)
    for own in (method, other):
        train(own, own.assign(REPORTS, 1))
        relays = as_plan(own.pass_on())
        saved = own.state().to_bytes()
    train(method, relays)
    method.restore(MethodState.read(saved))
    method.advance()
    other.advance()
    assert method.state().to_bytes() == other.state().to_bytes()


def test_the_pairs_that_answer_most_alike_are_linked() -> None:
    answers = {"a": [0.9, 0.1], "b": [0.88, 0.12], "c": [0.1, 0.9], "d": [0.5, 0.5]}
    shown = {key: {0: np.array(value)} for key, value in answers.items()}
    assert linked_pairs(shown, 0.01) == {"a": ("b",), "b": ("a",)}
    assert linked_pairs(shown, 1.0)["d"] == ("a", "b", "c")
    assert linked_pairs({"a": shown["a"]}, 0.5) == {}


def test_an_exchange_needs_labelled_examples_and_a_last_linear_layer() -> None:
    with pytest.raises(ConfigError, match="exchange compares clusters by what they answer for labelled examples"):
        FedConv(replace(PARAMS, exchange=True), replace(make().setting, public=None))


@pytest.mark.parametrize("changes", [{"exchange": True}, {"clusters": 2}], ids=str)
def test_last_layers_that_stay_on_devices_cannot_be_compared(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="personal_layers keeps head"):
        make(personal_layers=("head",), **changes)
