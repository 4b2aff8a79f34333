"""FedConv: what a device gets, what comes of what it sends back, with labels, without, and with other labels."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedwright.protocol import tensors
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks.robust import Combine
from fedwright.server_runtime.methods.base import CheckedUpdate, MethodState, Setting
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.baselines.heterofl import HeteroFL
from fedwright.server_runtime.methods.baselines.slice_tuned import SliceTuned
from fedwright.server_runtime.methods.fedconv.method import FedConv
from fedwright.server_runtime.methods.fedconv.params import FedConvParams
from fedwright.server_runtime.methods.params.submodels import FedAvgParams, HeteroFLParams, Levels
from fedwright.server_runtime.methods.registry import find
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting

SHAPE, CLASSES = (1, 8, 8), 3
LEVELS = Levels(sizes=(0.25, 0.5, 1.0), choose="in_turn")
SHORT = FedConvParams(
    levels=LEVELS, pretrain_epochs=2, compress_epochs=4, again_epochs=1, dilate_epochs=1, weigh_epochs=1, server_batch=8
)
DEVICES = ("d-0", "d-1", "d-2", "d-3", "d-4", "d-5")
REPORTS = {device: report() for device in DEVICES}
STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


def public(rows: int = 48, *, labelled: bool = True, classes: int = CLASSES) -> PublicData:
    """Three kinds of stripes with noise."""
    rng = np.random.default_rng(2)
    y = np.arange(rows) % classes
    lines = np.arange(8)
    x = np.stack([np.cos(lines * (label + 1))[None, :, None] * np.ones((1, 8, 8)) for label in y])
    return PublicData((x + 0.3 * rng.normal(size=x.shape)).astype(np.float32), y if labelled else None)


def born(model: str = "cnn-small", data: PublicData | None = None) -> Setting:
    """The setting of a small model."""
    spec = ModelSpec(model, SHAPE, CLASSES)
    return setting(spec=spec, initial=initial_weights(zoo.create(spec, seed=1)), public=data)


def play(method: FedConv, number: int, change: float = 0.01) -> None:
    """One round in which devices move their weights at random."""
    rng = np.random.default_rng(number)
    assignments = method.assign(REPORTS, number)
    for device, assignment in sorted(assignments.items()):
        weights = method.emit(device, assignment).weights
        sent = {name: (change * rng.normal(size=value.shape)).astype(np.float32) for name, value in weights.items()}
        method.absorb(device, CheckedUpdate(sent, STATS, assignment))
    method.advance()


def right(method: FedConv, device: str, data: PublicData) -> float:
    """Share of the rows that the model of a device classifies right."""
    spec, weights = method.model_of(device)
    module = zoo.create(spec, seed=0)
    module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=False)
    with torch.no_grad():
        said = module.eval()(torch.from_numpy(data.x)).argmax(1).numpy()
    return float((said == data.y).mean())


def test_a_device_gets_an_ordinary_small_model() -> None:
    method = FedConv(SHORT, born(data=public()))
    for device, assignment in method.assign(REPORTS, 1).items():
        emission = method.emit(device, assignment)
        wanted = initial_weights(zoo.create(assignment.structure.spec, seed=0))
        assert {n: v.shape for n, v in emission.weights.items()} == {n: v.shape for n, v in wanted.items()}
        assert not emission.sides
        assert not emission.frozen


def test_bytes_are_those_of_heterofl_at_equal_ratios() -> None:
    ours = FedConv(SHORT, born(data=public()))
    theirs = HeteroFL(HeteroFLParams(LEVELS, masked=False, scaler=False), born())
    mine, other = ours.assign(REPORTS, 1), theirs.assign(REPORTS, 1)
    for device in DEVICES:
        sent = [method.emit(device, plan[device]).weights for method, plan in ((ours, mine), (theirs, other))]
        assert len({len(tensors.save(weights)) for weights in sent}) == 1
        assert mine[device].structure == other[device].structure


def test_the_server_teaches_all_sizes_before_the_first_round() -> None:
    data = public()
    method = FedConv(
        replace(SHORT, pretrain_epochs=15, compress_epochs=15, server_rate=1e-2, kernel_rate=1e-2), born(data=data)
    )
    assert right(method, "", data) > 0.9
    assert min(right(method, device, data) for device in ("d-0", "d-1")) > 0.8


def test_without_examples_kernels_are_crops_and_changes_are_averaged() -> None:
    method = FedConv(SHORT, born("mlp", None))
    spec, small = method.model_of("d-1")
    before = method.model_of("")[1]["encoder.fc1.1.bias"].copy()
    np.testing.assert_allclose(small["encoder.fc1.1.bias"], before[32:96], atol=1e-6)
    assignments = method.assign(REPORTS, 1)
    for device in DEVICES:
        weights = method.emit(device, assignments[device]).weights
        method.absorb(
            device, CheckedUpdate({n: np.ones_like(v) for n, v in weights.items()}, STATS, assignments[device])
        )
    method.advance()
    # two of six devices have a quarter, two a half, two all of the channels
    moved = method.model_of("")[1]["encoder.fc1.1.bias"] - before
    np.testing.assert_allclose(moved[[0, 40, 63]], [2 / 6, 4 / 6, 1.0], atol=1e-5)
    assert spec.sizes


@pytest.mark.parametrize(
    "changes",
    [
        {"group": "device"},
        {"dilate": "model"},
        {"weigh": "none"},
        {"weigh": "layer", "divergence": 0.2},
        {"weigh": "element", "equalise": True},
        {"shared": False},
        {"mlr": True, "delta": False},
        {"server_epochs": 1},
        {"padding": 1, "kernel": 5, "channels": 4, "weigh_schedule": "constant", "rate_period": 2, "lowest_rate": 1e-4},
        {"personal_layers": ("head",)},
        {"exchange": True},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_every_variant_goes_on_from_its_state(changes: dict[str, Any]) -> None:
    params = replace(SHORT, **changes)
    method = FedConv(params, born(data=public()))
    play(method, 1)
    saved = MethodState.read(method.state().to_bytes())
    play(method, 2)
    again = FedConv(params, born(data=public()))
    again.restore(saved)
    play(again, 2)
    assert again.state().tensors.keys() == method.state().tensors.keys()
    for name, value in method.state().tensors.items():
        np.testing.assert_array_equal(again.state().tensors[name], value)


def test_unlabelled_examples_distil() -> None:
    data = public(labelled=False)
    method = FedConv(replace(SHORT, compress_epochs=20, kernel_rate=3e-3), born(data=data))
    start = FedConv(replace(SHORT, compress_epochs=0), born(data=data))
    x = torch.from_numpy(data.x)

    def distance(own: FedConv) -> float:
        (_, large), (spec, small) = own.model_of(""), own.model_of("d-0")
        said = []
        for form, weights in ((own.setting.spec, large), (spec, small)):
            module = zoo.create(form, seed=0)
            module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
            said.append(module(x).detach())
        return float(((said[0] - said[1]) ** 2).mean())

    assert distance(method) < 0.7 * distance(start)
    play(method, 1)


def test_random_examples_stand_in_for_public_ones() -> None:
    method = FedConv(replace(SHORT, random_examples=20), born())
    crop = FedConv(SHORT, born())
    name = "encoder.conv1.0.weight"
    assert not np.allclose(method.model_of("d-0")[1][name], crop.model_of("d-0")[1][name])


def test_other_labels_teach_the_encoder_and_not_the_head() -> None:
    data = public(classes=5)
    whole = born(data=data)
    method = FedConv(replace(SHORT, transfer=True), whole)
    weights = method.model_of("")[1]
    np.testing.assert_array_equal(weights["head.weight"], whole.initial["head.weight"])
    assert not np.allclose(weights["encoder.conv1.0.weight"], whole.initial["encoder.conv1.0.weight"])
    assert method.state().tensors["transfer/head.weight"].shape[0] == 5
    play(method, 1)
    assert method.model_of("d-0")[1]["head.weight"].shape[0] == CLASSES


def test_of_personal_layers_nothing_comes_and_the_rest_is_learned() -> None:
    method = FedConv(replace(SHORT, personal_layers=("head",)), born(data=public()))
    assignment = method.assign(REPORTS, 1)["d-0"]
    sent = method.emit("d-0", assignment).weights
    before = {name: value.copy() for name, value in method.model_of("")[1].items()}
    assert assignment.returns.personal == ["head.weight", "head.bias"]
    assert method.personal_layers("d-0") == ("head.weight", "head.bias")
    change = {n: np.full_like(v, 0.1) for n, v in sent.items() if not n.startswith("head")}
    method.absorb("d-0", CheckedUpdate(change, STATS, assignment))
    method.advance()
    after = method.model_of("")[1]
    assert not np.allclose(after["encoder.conv1.0.weight"], before["encoder.conv1.0.weight"], atol=1e-3)
    assert method.pools_by() == "samples"


def test_running_statistics_are_those_of_the_servers_examples() -> None:
    data = public()
    method = FedConv(SHORT, born("resnet8", data))
    spec, weights = method.model_of("d-0")
    module = zoo.create(spec, seed=0)
    module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=False)
    stem = module.get_submodule("encoder.stem")
    layers: Any = stem
    made = layers[0](torch.from_numpy(data.x)).detach()
    np.testing.assert_allclose(weights["encoder.stem.1.running_mean"], made.mean((0, 2, 3)).numpy(), atol=1e-5)


def test_means_of_one_ratio_may_come_together() -> None:
    one, two = (FedConv(SHORT, born(data=public())) for _ in range(2))
    plan = one.assign(REPORTS, 1)
    two.assign(REPORTS, 1)
    weights = one.emit("d-0", plan["d-0"]).weights
    changes = [{n: np.full_like(v, c) for n, v in weights.items()} for c in (0.01, 0.04)]
    one.absorb("d-0", CheckedUpdate(changes[0], STATS, plan["d-0"]))
    one.absorb("d-3", CheckedUpdate(changes[1], replace_samples(20), plan["d-3"]))
    pooled = {n: ((10 * changes[0][n] + 20 * changes[1][n]) / 30).astype(np.float32) for n in weights}
    two.absorb("d-0", CheckedUpdate(pooled, replace_samples(30), plan["d-0"]))
    assert one.pools_by() == "samples"
    one.advance()
    two.advance()
    for name, value in one.model_of("")[1].items():
        np.testing.assert_allclose(two.model_of("")[1][name], value, atol=2e-4)


def replace_samples(samples: int) -> Stats:
    """Figures of so many samples."""
    return Stats(samples=samples, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)


def test_a_stride_that_leaves_a_ratio_without_a_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="stride 3 and padding 0 cannot make"):
        FedConv(replace(SHORT, stride=3), born(data=public()))


def test_the_control_trains_slices() -> None:
    data = public()
    method = SliceTuned(replace(SHORT, compress_epochs=0, again_epochs=0), born(data=data))
    small, large = method.model_of("d-1")[1], method.model_of("")[1]
    np.testing.assert_array_equal(small["encoder.conv1.0.weight"], large["encoder.conv1.0.weight"][:8])
    taught = SliceTuned(replace(SHORT, compress_epochs=15, server_rate=1e-2, kernel_rate=1e-2), born(data=data))
    assert right(taught, "d-1", data) > 0.9
    play(method, 1)


def test_the_control_trains_slices_at_the_rate_of_kernels() -> None:
    slow, fast = (SliceTuned(replace(SHORT, kernel_rate=rate), born(data=public())) for rate in (1e-3, 1e-2))
    np.testing.assert_array_equal(slow.model_of("")[1]["head.weight"], fast.model_of("")[1]["head.weight"])
    assert not np.allclose(slow.model_of("d-0")[1]["head.weight"], fast.model_of("d-0")[1]["head.weight"])


def test_fedavg_at_a_width_is_fedavg_of_a_small_model() -> None:
    method = FedAvg(FedAvgParams(width=0.25), born())
    spec, weights = method.model_of("")
    assert zoo.width_of(spec) == pytest.approx(0.25)
    assert weights["encoder.conv1.0.weight"].shape[0] == 4
    assert method.assign(REPORTS, 1)["d-0"].structure.spec == spec


def test_a_ratio_that_empties_a_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ratio 0\.05 leaves nothing of the 16 channels of conv1"):
        FedConv(replace(SHORT, levels=Levels(sizes=(0.05, 1.0))), born())


def test_a_share_of_the_parameters_is_checked_by_the_width_it_gives() -> None:
    levels = Levels(sizes=(1 / 64, 1.0), by="params")
    method = FedConv(replace(SHORT, levels=levels), born("cnn-gn"))
    assert min(zoo.sizes_of(method.specs[0]).values()) >= 1
    assert 1 / 64 < zoo.width_of(method.specs[0]) < 0.25


def test_a_share_whose_width_empties_a_layer_is_refused() -> None:
    levels = Levels(sizes=(0.006, 1.0), by="params")
    with pytest.raises(ConfigError, match=r"size 0\.006, a width of 0\.\d+, leaves nothing of the \d+ channels"):
        FedConv(replace(SHORT, levels=levels), born("cnn-flat"))


@pytest.mark.parametrize("kind", ["median", "trimmed_mean"])
@pytest.mark.parametrize("method", ["fedconv", "slice-tuned"])
def test_only_whole_changes_are_compared(method: str, kind: Any) -> None:
    with pytest.raises(ConfigError, match=rf"update\.combine is '{kind}' but {method} has no average"):
        find(method).make(SHORT, replace(born(data=public()), combine=Combine(kind)))


def test_it_is_said_once_that_there_are_no_examples(caplog: pytest.LogCaptureFixture) -> None:
    method = FedConv(SHORT, born())
    play(method, 1)
    FedConv(SHORT, born(data=public()))
    FedConv(replace(SHORT, random_examples=16), born())
    said = [message for message in caplog.messages if "public.file" in message and "random_examples" in message]
    assert len(said) == len(caplog.messages) == 1


def test_the_control_knows_no_transfer() -> None:
    with pytest.raises(ConfigError, match="slice-tuned has no transfer"):
        SliceTuned(replace(SHORT, transfer=True), born(data=public(classes=5)))


def test_what_the_server_trains_lies_on_its_torch_device(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FedConv(SHORT, replace(born(), device="meta"))._server
    seen: list[str] = []

    def train(
        weights: dict[str, torch.Tensor], spec: ModelSpec, epochs: int, *names: str, rate: Any = None
    ) -> dict[str, torch.Tensor]:
        seen.extend(value.device.type for value in weights.values())
        return {name: torch.ones(value.shape) for name, value in weights.items()}

    monkeypatch.setattr(server, "train", train)
    more = server.trained_more(born().initial, 1, "1")
    assert set(seen) == {"meta"}
    assert more["head.bias"].tolist() == [1.0] * CLASSES
    assert server.own_head({"head.bias": np.ones(3, np.float32)})["head.bias"].device.type == "meta"


def test_examples_without_some_class_are_refused() -> None:
    data = public(classes=2)
    with pytest.raises(ConfigError, match="none of class 2"):
        FedConv(SHORT, born(data=data))


def test_a_single_example_is_refused() -> None:
    with pytest.raises(ConfigError, match="single example"):
        FedConv(SHORT, born(data=public(rows=1)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pretrain_epochs", -1),
        ("server_batch", 0),
        ("server_rate", 0.0),
        ("holdout", 1.0),
        ("divergence", -0.1),
        ("clusters", 0),
        ("stride", 0),
        ("padding", -1),
        ("kernel", 0),
        ("channels", 0),
        ("rate_period", 0),
        ("lowest_rate", -1.0),
        ("exchange_epochs", 0),
        ("exchange_share", 0.0),
        ("exchange_links", 1.5),
    ],
)
def test_settings_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        FedConvParams(**cast(Any, {name: value}))
