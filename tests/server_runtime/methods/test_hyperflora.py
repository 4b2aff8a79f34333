"""HyperFLoRA: pre-training, adapters, pairs that pass one on, bystanders, variants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from msgspec.msgpack import decode

from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary, Report, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks.hypernet import Hypernet, HypernetForm, HypernetStart, Step
from fedwright.server_runtime.methods.base import Assignment, CheckedUpdate, Emission, MethodState
from fedwright.server_runtime.methods.hyperflora import HyperFLoRA
from fedwright.server_runtime.methods.params.generated_models import HyperFLoRAParams
from fedwright.server_runtime.methods.shared.frozen_base import FrozenBase
from fedwright.server_runtime.methods.shared.generated_models import unit
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.simulate import simulate
from helpers.fleet import report, setting
from helpers.present import present
from helpers.simulation import make_config
from helpers.tiny_artifact import make_artifact

SPEC = ModelSpec("cnn-lora", (1, 8, 8), 4)
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
COUNTS = {"a": [8, 8, 0, 0], "b": [0, 8, 8, 0], "c": [0, 0, 8, 8], "d": [8, 0, 0, 8]}


def make(spec: ModelSpec = SPEC, **changes: Any) -> HyperFLoRA:
    initial = initial_weights(zoo.create(spec, seed=1))
    params = HyperFLoRAParams(**{"pretrain_rounds": 0, "exchanges": 2, **changes})
    return HyperFLoRA(params, setting(spec=spec, initial=initial))


def reports(**more: Any) -> dict[str, Report]:
    return {
        device: report(data=DataSummary(24, 8, [1, 8, 8], 4, class_counts=counts))
        for device, counts in {**COUNTS, **more}.items()
    }


def msgpack(assignment: Assignment) -> dict[str, Any]:
    """What a plan remembers, as plain data."""
    answer: dict[str, Any] = decode(bytes(assignment.marks))
    return answer


def play(
    method: HyperFLoRA, number: int = 1, *, change: float = 0.1, silent: tuple[str, ...] = ()
) -> list[tuple[dict[str, Assignment], dict[str, Emission]]]:
    """A whole round with its relays; returns the emissions of each stage."""
    stage, seen = method.assign(reports(), number), []
    while stage:
        emissions = {device: method.emit(device, assignment) for device, assignment in sorted(stage.items())}
        seen.append((dict(stage), emissions))
        relays = []
        for device, assignment in sorted(stage.items()):
            if device not in silent:
                sent = {name: np.full_like(value, change) for name, value in emissions[device].weights.items()}
                relays.append(method.absorb(device, CheckedUpdate(sent, STATS, assignment)))
        stage = {relay.device: relay.assignment for relay in relays if relay is not None}
    method.advance()
    return seen


def test_pretraining_trains_the_base_and_then_it_is_frozen() -> None:
    method = make(pretrain_rounds=1)
    before = dict(method._base.weights)
    first = play(method, 1)
    assert len(first) == 1
    assert set(first[0][1]["a"].weights) == set(before)
    np.testing.assert_allclose(method._base.weights["head.bias"], before["head.bias"] + 0.1, atol=1e-6)
    frozen = dict(method._base.weights)
    second = play(method, 2)
    assert all(name.rpartition(".")[2].startswith("lora_") for name in second[0][1]["a"].weights)
    for name, value in frozen.items():
        np.testing.assert_array_equal(method._base.weights[name], value)


def test_the_base_is_one_dictionary_for_everyone() -> None:
    seen = play(make())
    frozen = [emission.frozen for _, emissions in seen for emission in emissions.values()]
    assert all(each is frozen[0] for each in frozen)


def test_at_the_start_an_adapter_changes_nothing() -> None:
    method = make()
    method.assign(reports(), 1)
    weights = method.model_of("a")[1]
    np.testing.assert_array_equal(weights["head.weight"], method._base.weights["head.weight"])


def test_a_pairs_adapter_goes_to_and_fro() -> None:
    method = make(exchanges=2)
    seen = play(method)
    assert len(seen) == 1 + 2 * 2
    # every hop moves the adapter by 0.1 and the next one begins there
    for hop, (stage, emissions) in enumerate(seen[1:]):
        assert all(assignment.recipe.epochs == 1 for assignment in stage.values())
        ups = [float(emission.weights["head.lora_up"][0, 0]) for emission in emissions.values()]
        np.testing.assert_allclose(ups, 0.1 * hop, atol=1e-6)
    assert set(seen[1][0]) != set(seen[2][0])
    assert set(seen[1][0]) >= set(seen[3][0])


def test_pairs_use_half_of_their_classes() -> None:
    stage, _ = play(make())[1]
    for assignment in stage.values():
        assert 1 <= len(present(assignment.recipe.classes)) <= 2


def test_a_device_that_stays_silent_costs_only_its_pair() -> None:
    method = make()
    before = method.model_of("a")[1]["head.weight"].copy()
    stages = play(method, silent=("a", "b"))
    assert len(stages) <= 5
    assert method._passed == {}
    assert play(method, 2)
    assert not np.array_equal(method.model_of("a")[1]["head.weight"], before)


def test_without_pairs_a_round_has_one_stage() -> None:
    assert len(play(make(pairs=False))) == 1


def test_variants_move_differently() -> None:
    found = {}
    for name, sequential in {"mean": False, "sequential": True}.items():
        method = make(pairs=False, sequential=sequential)
        play(method)
        found[name] = method.model_of("a")[1]["head.weight"]
    assert not np.allclose(found["mean"], found["sequential"])


def test_the_head_variant_writes_the_head_too() -> None:
    method = make(head=True)
    emission = play(method)[0][1]["a"]
    assert {"head.weight", "head.bias"} <= emission.weights.keys()
    assert not {"head.weight", "head.bias"} & emission.frozen.keys()


def test_bystanders_get_a_merged_model_and_never_train() -> None:
    method = make()
    play(method)
    late = report(data=DataSummary(24, 8, [1, 8, 8], 4, class_counts=[1, 1, 0, 0]), trains=False)
    method.meet({**reports(), "late": late})
    spec, weights = method.model_of("late")
    assert spec == ModelSpec("cnn-small", (1, 8, 8), 4)
    np.testing.assert_array_equal(weights["head.weight"], method.model_of("a")[1]["head.weight"])
    assert "late" not in method.assign({**reports(), "late": late}, 2)


def test_a_merged_model_computes_what_the_adapted_one_does() -> None:
    method = make()
    play(method)
    spec, merged = method.model_of("a")
    rho = method._net().generate(method._row([0, 1])[None])[0]
    adapted = zoo.create(method._base.spec, seed=0)
    adapted.load_state_dict({n: torch.from_numpy(v) for n, v in {**method._base.weights, **rho}.items()})
    plain = zoo.create(spec, seed=0)
    plain.load_state_dict({n: torch.from_numpy(v) for n, v in merged.items()})
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(plain(x), adapted(x), atol=1e-5, rtol=1e-4)


def test_a_device_without_the_memory_to_train_is_a_bystander() -> None:
    heavy = structs.replace(make_artifact().manifest, fixed_bytes=10**8)
    method = make()
    method._setting = setting(spec=SPEC, manifest=lambda structure: heavy)
    small = {**reports(), "b": report(data=reports()["b"].data, free_bytes=10**7)}
    assert set(method.assign(small, 1)) == {"a", "c", "d"}
    assert method.model_of("b")[0].model == "cnn-small"


def test_masked_logits_give_only_owned_classes() -> None:
    method = make(mask_logits=True)
    method.assign(reports(), 1)
    bias = method.model_of("a")[1]["head.bias"]
    assert (bias[2:] < -1000).all()
    assert (bias[:2] > -10).all()


def test_a_device_without_classes_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    method = make()
    assert set(method.assign(reports(e=[0, 0, 0, 0]), 1)) == set(COUNTS)
    assert "holds no class at all" in caplog.text
    np.testing.assert_array_equal(method.model_of("e")[1]["head.weight"], method._base.weights["head.weight"])


def test_a_device_with_classes_beyond_the_models_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    method = make()
    assert set(method.assign(reports(e=[1, 0, 0, 0, 0, 2]), 1)) == set(COUNTS)
    assert "it holds class 5 but the model has only 4 classes" in caplog.text


def test_a_device_that_knows_fewer_classes_lacks_the_others() -> None:
    method = make()
    assert set(method.assign(reports(e=[3, 1], f=[1, 1, 0, 0, 0, 0]), 1)) == {*COUNTS, "e", "f"}
    for device in "ef":
        np.testing.assert_array_equal(method._known.rows[device], method._known.rows["a"])


def test_a_round_of_pairs_that_share_nothing_still_ends() -> None:
    """Devices that report no class at all are left out, so a pair always has one that holds a drawn class."""
    method = make(exchanges=1)
    only = {device: reports()[device] for device in ("a", "c")}
    stage = method.assign(only, 1)
    (lead,) = (device for device, assignment in stage.items() if msgpack(assignment)["turns"])
    assert set(msgpack(stage[lead])["drawn"]) <= {0, 1, 2, 3}
    assert set(msgpack(stage[lead])["turns"]) <= {"a", "c"}


def test_a_model_without_adapters_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no adapters"):
        make(ModelSpec("cnn-small", (1, 8, 8), 4))


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("python:helpers.own_models:cnn", {"targets": ["4", "8"], "rank": 2, "alpha": 4.0, "head": True}),
        ("python:helpers.own_models:transformer", {"targets": "all-linear"}),
        ("cnn-small", {"targets": r".*conv\d.*"}),
    ],
    ids=["own convolutions, normalised", "all linear layers", "zoo"],
)
def test_any_model_gets_adapters_in_the_layers_that_are_named(tmp_path: Path, model: str, more: dict[str, Any]) -> None:
    config, text = make_config(
        tmp_path,
        model={"model": model},
        method={"name": "hyperflora", "pretrain_rounds": 1, "exchanges": 1, **more},
        simulate={"rows": 120, "evaluate_every": 0},
    )
    found = simulate(config, text)
    assert all(record.rounds >= 2 for record in found.outcome.devices.values())


def test_all_linear_layers_are_all_but_the_classifier() -> None:
    spec = ModelSpec("python:helpers.own_models:head_first", (1, 8, 8), 4)
    method = make(spec, targets="all-linear", rank=2)
    assert {name.rpartition(".")[0] for name in method._base.adapters} == {"first", "second"}
    assert method._base.ranks == (1, 2)
    with pytest.raises(ConfigError, match=r"alpha scales adapters of layers that are named; set method\.targets"):
        make(alpha=2.0)


def test_a_base_from_a_file_is_the_base(tmp_path: Path) -> None:
    given = {name: value + 1 for name, value in make()._base.weights.items()}
    file = tmp_path / "base.safetensors"
    file.write_bytes(tensors.save({**given, "known/a": np.zeros(3, np.float32)}))
    method = make(base=str(file))
    play(method)
    for name, value in given.items():
        np.testing.assert_array_equal(method._base.weights[name], value)


def test_a_base_that_is_not_the_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read from"):
        make(base=str(tmp_path / "none.safetensors"))
    file = tmp_path / "other.safetensors"
    file.write_bytes(tensors.save({"head.bias": np.zeros(3, np.float32)}))
    with pytest.raises(ConfigError, match="no such tensor for encoder"):
        make(base=str(file))
    weights = {**make()._base.weights, "head.bias": np.zeros(3, np.float32)}
    file.write_bytes(tensors.save(weights))
    with pytest.raises(ConfigError, match=r"shape \(3,\) for head.bias, where the model has shape \(4,\)"):
        make(base=str(file))


@pytest.mark.parametrize(("keep_scale", "least", "most"), [(False, 0.9, 1.0), (True, 0.0, 0.6)], ids=["torch", "ours"])
def test_how_much_of_a_change_reaches_a_device_with_other_classes(keep_scale: bool, least: float, most: float) -> None:
    """With torch's start nearly all of it, so that nothing personal could be learnt in a few hundred rounds."""
    net = Hypernet(
        HypernetForm(10, 128, 3, keep_scale=keep_scale), HypernetStart({"w": np.zeros(4, np.float32)}, {}, 0.0), seed=1
    )
    one, other = unit(np.eye(10, dtype=np.float32)[[0, 1, 2]].sum(0)), unit(np.eye(10, dtype=np.float32)[[7, 8]].sum(0))
    net.add(one, {"w": np.ones(4, np.float32)})
    net.learn(Step(0.05))
    own, foreign = (made["w"][0] for made in net.generate(np.stack([one, other])))
    assert least < foreign / own < most


def test_the_adapters_that_came_back_are_counted_even_through_a_kill() -> None:
    method = make(exchanges=2)
    stage = method.assign(reports(), 1)
    emissions = {device: method.emit(device, assignment) for device, assignment in stage.items()}
    for device, assignment in sorted(stage.items()):
        sent = {name: np.zeros_like(value) for name, value in emissions[device].weights.items()}
        method.absorb(device, CheckedUpdate(sent, STATS, assignment))
    resumed = make(exchanges=2)
    resumed.restore(method.state())
    assert method.advance()["adapters"] == resumed.advance()["adapters"] == 4
    assert resumed.advance()["adapters"] == 0


def test_in_the_middle_of_a_round_a_restored_one_goes_on_alike() -> None:
    whole = make()
    saved = whole.state()
    stage = whole.assign(reports(), 1)
    for _ in range(5):
        emissions = {device: whole.emit(device, assignment) for device, assignment in stage.items()}
        resumed = make()
        resumed.restore(saved)
        relays = []
        for device, assignment in sorted(stage.items()):
            sent = {name: np.full_like(value, 0.1) for name, value in emissions[device].weights.items()}
            relays.append(whole.absorb(device, CheckedUpdate(sent, STATS, assignment)))
            assert resumed.absorb(device, CheckedUpdate(sent, STATS, assignment)) == relays[-1]
        saved = MethodState.read(whole.state().to_bytes())
        stage = {relay.device: relay.assignment for relay in relays if relay is not None}
    for method in (whole, resumed):
        method.advance()
        method.meet(reports())
    for name, value in whole.state().tensors.items():
        np.testing.assert_array_equal(resumed.state().tensors[name], value)


def test_the_base_travels_once(tmp_path: Path) -> None:
    config, text = make_config(
        tmp_path,
        rounds=3,
        model={"model": "cnn-lora"},
        method={"name": "hyperflora", "pretrain_rounds": 1, "exchanges": 1},
        simulate={"rows": 120, "evaluate_every": 0},
    )
    simulate(config, text)
    store = SqliteRoundStore(tmp_path / "run/rounds.sqlite")
    plans = [planned for closed in store.closed() for planned in present(store.plan(closed.position))]
    store.close()
    frozen = {present(planned.task.frozen).sha256 for planned in plans if planned.task.round > 1}
    assert len(frozen) == 1
    assert "head.weight" in tensors.load(BlobStore(tmp_path / "run/blobs").path(frozen.pop()))
    adapters = {planned.task.weights.size_bytes for planned in plans if planned.task.round > 1}
    assert max(adapters) < 4 * (544 + 42) + 1000


def test_without_a_number_half_of_the_run_is_pre_training(caplog: pytest.LogCaptureFixture) -> None:
    initial = initial_weights(zoo.create(SPEC, seed=1))
    born = setting(spec=SPEC, initial=initial, rounds=5)

    def frozen_after(params: HyperFLoRAParams) -> int:
        base = FrozenBase(params, born)
        for rounds in range(1, 6):
            base.advance()
            if base.frozen:
                return rounds
        raise AssertionError("never frozen")

    assert frozen_after(HyperFLoRAParams()) == 2
    assert frozen_after(HyperFLoRAParams(pretrain_rounds=3)) == 3
    assert not caplog.messages
    FrozenBase(HyperFLoRAParams(pretrain_rounds=5), born)
    assert "pretrain_rounds is 5 and the run has 5 rounds, so that no adapter is trained" in caplog.text


def test_a_run_that_is_made_longer_does_not_thaw_its_base() -> None:
    initial = initial_weights(zoo.create(SPEC, seed=1))
    base = FrozenBase(HyperFLoRAParams(), setting(spec=SPEC, initial=initial, rounds=4))
    base.advance()
    base.advance()

    longer = FrozenBase(HyperFLoRAParams(), setting(spec=SPEC, initial=initial, rounds=40))
    longer.restore(base.state())

    assert base.frozen
    assert longer.frozen
