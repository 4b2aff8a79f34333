"""What each submodel method does that the others do not, on numbers that can be checked by head."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary, Report, Stats
from fedwright.protocol.predictor import need_bytes
from fedwright.protocol.support.settings import from_dict
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.methods.base import CheckedUpdate, Emission, Method
from fedwright.server_runtime.methods.baselines.fiarse import Fiarse
from fedwright.server_runtime.methods.registry import find
from fedwright.server_runtime.methods.shared.submodels import SubmodelMethod, count_params, width_for_params
from fedwright.server_runtime.spec import ModelSpec, Structure
from helpers.fleet import report, setting
from helpers.tiny_artifact import make_artifact

SPEC = ModelSpec("mlp", (6,), 4)


def make(name: str, spec: ModelSpec = SPEC, manifest: Callable[..., Any] | None = None, **params: Any) -> Any:
    """A method with parameters as a config gives them."""
    entry = find(name)
    born = setting(spec=spec, initial=initial_weights(zoo.create(spec, seed=1)), manifest=manifest)
    return entry.make(from_dict(entry.params, params, where="test"), born)


def device(
    counts: tuple[int, int, int, int] = (6, 6, 6, 6),
    *,
    shape: tuple[int, ...] = (6,),
    samples: int = 24,
    free_bytes: int = 10**9,
    **more: Any,
) -> Report:
    """A report with these class counts."""
    data = DataSummary(samples, 8, list(shape), 4, list(counts), **more)
    return report(data=data, free_bytes=free_bytes)


def heavy(structure: Structure) -> Manifest:
    """A manifest as if the full width took 500 MB."""
    fixed = int(5e8 * zoo.width_of(structure.spec))
    return structs.replace(make_artifact().manifest, fixed_bytes=fixed, sample_bytes=0)


def heavy_bytes(width: float) -> int:
    """What `heavy` needs at a width, by the device's own formula."""
    fixed = int(5e8 * width)
    return need_bytes(structs.replace(make_artifact().manifest, fixed_bytes=fixed, sample_bytes=0), 1)


def play(
    method: Method, reports: dict[str, Report], changes: dict[str, float], *, number: int = 1, samples: int = 10
) -> dict[str, Emission]:
    """One round in which each device moves all its weights by its change; what they were sent."""
    assignments = method.assign(reports, number)
    sent = {name: method.emit(name, assignment) for name, assignment in assignments.items()}
    stats = Stats(samples=samples, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
    for name, assignment in sorted(assignments.items()):
        moved = {key: np.full_like(value, changes[name]) for key, value in sent[name].weights.items()}
        method.absorb(name, CheckedUpdate(moved, stats, assignment))
    method.advance()
    return sent


def moved(method: SubmodelMethod, before: dict[str, NDArray[Any]], name: str) -> np.ndarray:
    """How far a tensor of the global model has moved."""
    answer: np.ndarray = np.round(method.weights[name] - before[name], 5)
    return answer


def test_heterofl_averages_the_nested_part_over_both() -> None:
    method = make("heterofl", levels={"sizes": [1.0, 0.5]}, masked=False)
    before = dict(method.weights)
    play(method, {"d0": device(), "d1": device()}, {"d0": 1.0, "d1": 3.0})

    # fc1 has 128 channels, fc2 has 64; device d1 holds the first half of both
    change = moved(method, before, "encoder.fc2.0.weight")
    assert (change[:32, :64] == 2).all()
    assert (change[32:] == 1).all()
    assert (change[:32, 64:] == 1).all()


def test_heterofl_averages_only_the_classifier_rows_of_own_classes() -> None:
    method = make("heterofl", levels={"sizes": [1.0]})
    before = dict(method.weights)
    sent = play(method, {"d0": device((5, 5, 0, 0)), "d1": device((5, 0, 5, 0))}, {"d0": 1.0, "d1": 3.0})

    np.testing.assert_array_equal(sent["d0"].sides["class_mask"], [1, 1, 0, 0])
    assert moved(method, before, "head.bias").tolist() == [2, 1, 3, 0]


def test_heterofl_scales_narrow_levels() -> None:
    method = make("heterofl", levels={"sizes": [1.0, 0.5]})
    assignments = method.assign({"d0": device(), "d1": device()}, 1)
    assert assignments["d0"].structure.objective.scaler == 0
    assert assignments["d1"].structure.objective.scaler == 0.5


def test_fedrolex_windows_move_by_one_and_wrap() -> None:
    method = make("fedrolex", levels={"sizes": [0.5]})
    spec = method.spec_of("d0")
    plans = [method.plan_of("d0", spec, method.marks_of("d0", number)) for number in (1, 2, 65)]
    assert [plan["fc2"][[0, -1]].tolist() for plan in plans] == [[0, 31], [1, 32], [0, 31]]
    covered = {int(i) for t in range(1, 65) for i in method.plan_of("d0", spec, method.marks_of("d0", t))["fc2"]}
    assert covered == set(range(64))


def test_feddropout_draws_anew_for_every_device_and_round() -> None:
    method = make("feddropout", levels={"sizes": [0.5]})
    reports = {"d0": device(), "d1": device()}
    first, second = method.assign(reports, 1), method.assign(reports, 2)
    drawn = [tuple(method.plan_of(n, r[n].structure.spec, r[n].marks)["fc1"]) for r in (first, second) for n in reports]
    assert len(set(drawn)) == 4
    assert all(len(subset) == 64 for subset in drawn)


def test_fiarse_averages_each_entry_over_those_who_changed_it() -> None:
    method = make("fiarse", sizes=[1.0, 0.25])
    before = dict(method.weights)
    assignments = method.assign({"d0": device(), "d1": device()}, 1)
    stats = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
    for name, step in (("d0", 1.0), ("d1", 3.0)):
        weights = method.emit(name, assignments[name]).weights
        delta = {key: np.where(value != 0, step, 0).astype(np.float32) for key, value in weights.items()}
        method.absorb(name, CheckedUpdate(delta, stats, assignments[name]))
    method.advance()

    change = np.concatenate([moved(method, before, name).reshape(-1) for name in before])
    large = np.abs(np.concatenate([before[name].reshape(-1) for name in before]))
    kept = np.sort(large)[-round(0.25 * len(large))]
    assert (change[large >= kept] == 2).all()
    assert (change[large < kept] == 1).all()


def test_fiarse_leaves_normalisation_whole() -> None:
    method = make("fiarse", ModelSpec("cnn-gn", (1, 8, 8), 4), sizes=[0.05])
    assert isinstance(method, Fiarse)
    sent = method.emit("d0", method.assign({"d0": device(shape=(1, 8, 8))}, 1)["d0"]).weights
    assert (sent["encoder.conv1.1.weight"] == 1).all()
    assert (sent["encoder.fc1.1.weight"] == 0).mean() > 0.9


def test_scalefl_cuts_depth_as_well_as_width() -> None:
    method = make("scalefl", ModelSpec("cnn-exits", (1, 8, 8), 4))
    before = dict(method.weights)
    reports = {name: device(shape=(1, 8, 8)) for name in ("d0", "d2")}
    sent = play(method, reports, {"d0": 1.0, "d2": 3.0})

    assert "encoder.conv2.0.weight" not in sent["d2"].weights
    assert (moved(method, before, "encoder.conv2.0.weight") == 1).all()
    assert moved(method, before, "encoder.conv1.0.weight")[:, 0, 0, 0].tolist() == [2] * 16 + [1] * 16
    assert method.assign(reports, 3)["d0"].structure.objective.exit_distill == 0.05
    assert method.assign(reports, 2)["d0"].structure.objective.exit_distill == 0.0


@pytest.mark.parametrize("aggregation", ["original", "selective"])
def test_hasa_at_full_width_is_fedavg(aggregation: str) -> None:
    reports, changes = {"d0": device(), "d1": device()}, {"d0": 0.5, "d1": -0.25}
    hasa = make("hasa", budget=1.0, least=1.0, most=1.0, aggregation=aggregation)
    fedavg = make("fedavg")
    play(hasa, reports, changes)
    play(fedavg, reports, changes)
    for name, value in fedavg.model_of("")[1].items():
        np.testing.assert_allclose(hasa.weights[name], value, atol=1e-7)


def test_hasa_protocols_differ_where_one_device_did_not_train() -> None:
    reports = {"d0": device((24, 0, 0, 0)), "d1": device((6, 6, 6, 6)), "d2": device((6, 6, 6, 6))}
    found = {}
    for aggregation in ("original", "selective"):
        method = make("hasa", aggregation=aggregation)
        before = dict(method.weights)
        play(method, reports, dict.fromkeys(reports, 1.0))
        found[aggregation] = moved(method, before, "encoder.fc2.0.bias")
    assert found["selective"][:10].tolist() == found["original"][:10].tolist() == [1.0] * 10
    widest = int(0.8 * 64)
    assert found["selective"][widest - 1] == 1
    assert found["original"][widest - 1] == pytest.approx(1 / 3, abs=1e-4)
    assert found["selective"][widest] == found["original"][widest] == 0


def test_hasa_gives_the_odd_device_the_widest_model() -> None:
    method = make("hasa")
    method.assign({"a": device((20, 4, 0, 0)), "b": device((6, 6, 6, 6)), "c": device((7, 5, 6, 6))}, 1)
    assert method.width_of("a") == max(map(method.width_of, "abc"))


def test_hasa_caps_widths_by_memory() -> None:
    method = make("hasa", manifest=heavy, budget=0.4, tolerance=1e-4)
    reports = {"a": device((24, 0, 0, 0), free_bytes=heavy_bytes(0.4)), "b": device(), "c": device()}
    method.assign(reports, 1)
    assert method.width_of("a") == pytest.approx(0.4, abs=0.01)
    with pytest.raises(ConfigError, match=r"device tiny has 0\.0 MB of memory but width 0\.2 takes 14\d\.\d MB"):
        make("hasa", manifest=heavy).assign({"tiny": device(free_bytes=1000)}, 1)


def test_hasa_leaves_out_a_device_that_is_too_small(caplog: pytest.LogCaptureFixture) -> None:
    method = make("hasa", manifest=heavy)
    found = method.assign({"a": device(), "tiny": device(free_bytes=1000), "z": device((9, 1, 7, 7))}, 1)
    assert sorted(found) == ["a", "z"]
    assert "device tiny has 0.0 MB of memory" in caplog.text


def test_hasa_goes_on_when_late_devices_cannot_meet_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    method = make("hasa", caps={"small": 0.2})
    before = method.assign({"a": device(), "b": device((9, 1, 7, 7))}, 1)
    after = method.assign({"a": device(), "b": device((9, 1, 7, 7)), "small": device(samples=10_000)}, 2)
    assert method.width_of("small") == 0.2
    assert after["a"].structure == before["a"].structure
    assert "too small for the budget" in caplog.text


def test_hasa_caps_widths_by_board_profile() -> None:
    method = make("hasa", caps={"nano": 0.3, "b": 0.35}, budget=0.3, tolerance=1e-4)
    board = structs.replace(device().board, profile="nano")
    reports = {"a": structs.replace(device((24, 0, 0, 0)), board=board), "b": device((0, 24, 0, 0)), "c": device()}
    method.assign(reports, 1)
    assert method.width_of("a") == pytest.approx(0.3)
    assert method.width_of("b") == pytest.approx(0.35)


def test_hasa_widens_its_roster_and_remembers_it() -> None:
    method = make("hasa")
    method.assign({"a": device((20, 4, 0, 0)), "b": device()}, 1)
    play(
        method,
        {"a": device((20, 4, 0, 0)), "b": device(), "late": device((0, 0, 0, 24))},
        dict.fromkeys(("a", "b", "late"), 0.1),
    )
    again = make("hasa")
    again.restore(method.state())
    assert [again.width_of(name) for name in ("a", "b", "late")] == [method.width_of(n) for n in ("a", "b", "late")]
    assert again.model_of("late")[0] == method.model_of("late")[0]


def test_hasa_scores_frozen_features() -> None:
    method = make("hasa", score="features")
    found = {"a": [0.0, 0.0], "b": [0.0, 0.1], "c": [3.0, 4.0]}
    method.assign({name: device(descriptor=values) for name, values in found.items()}, 1)
    assert max("abc", key=method.width_of) == "c"


@pytest.mark.parametrize("submodels", ["random", "rolling"])
def test_hasa_gives_size_driven_widths_to_any_set_of_channels(submodels: str) -> None:
    """Table II: widths by size, channels as FedDropout or FedRolex take them."""
    method = make("hasa", rule="size", submodels=submodels)
    reports = {"a": device(samples=10), "b": device(samples=90)}
    first, second = method.assign(reports, 1), method.assign(reports, 2)
    assert method.width_of("a") < method.width_of("b")
    plans = [method.plan_of("a", found["a"].structure.spec, found["a"].marks) for found in (first, second)]
    assert any(len(kept) < method.full[group] for group, kept in plans[0].items())
    assert any((plans[0][group] != plans[1][group]).any() for group in plans[0])
    assert method.model_of("")[0] == method.setting.spec


def test_hasa_scores_pixels() -> None:
    method = make("hasa", ModelSpec("cnn-small", (1, 8, 8), 4), score="pixels")
    reports = {n: device(shape=(1, 8, 8), pixel_std=std) for n, std in (("a", 0.1), ("b", 0.3), ("c", 0.2))}
    method.assign(reports, 1)
    assert sorted("abc", key=method.width_of) == ["a", "c", "b"]


def test_levels_by_budget_take_the_largest_that_fits(caplog: pytest.LogCaptureFixture) -> None:
    levels = {"sizes": [1.0, 0.5, 0.25], "choose": "budget"}
    method = make("fedrolex", manifest=heavy, levels=levels)
    room = {"a": 1.0, "b": 0.7, "c": 0.35}
    found = method.assign({name: device(free_bytes=heavy_bytes(width)) for name, width in room.items()}, 1)
    assert [zoo.width_of(found[name].structure.spec) for name in "abc"] == [1.0, 0.5, 0.25]
    again = make("fedrolex", manifest=heavy, levels=levels)
    again.restore(method.state())
    assert zoo.width_of(again.model_of("c")[0]) == 0.25
    assert method.assign({"d": device(free_bytes=10)}, 1) == {}
    assert "device d takes no part: nothing that this run has fits into 0.0 MB of memory" in caplog.text


@pytest.mark.parametrize("share", [1.0, 0.25, 0.0625])
def test_sizes_by_parameter_count(share: float) -> None:
    width = width_for_params(SPEC, share)
    assert count_params(zoo.scaled(SPEC, width)) <= share * count_params(SPEC)
    wider = min(1.0, width + 1 / 128)
    assert wider == 1.0 or count_params(zoo.scaled(SPEC, wider)) > share * count_params(SPEC)


BAD = {
    "width 0": ("heterofl", {"levels": {"sizes": [0.0]}}, "a size is above 0 and at most 1"),
    "width above 1": ("fedrolex", {"levels": {"sizes": [1.5]}}, "a size is above 0 and at most 1"),
    "no sizes": ("feddropout", {"levels": {"sizes": []}}, "sizes is empty"),
    "fiarse size": ("fiarse", {"sizes": [2.0]}, "needs numbers above 0 and up to 1"),
    "levels unequal": ("scalefl", {"widths": [1.0], "exits": [3, 2]}, "there are 1 widths but 2 exits"),
    "model without exits": ("scalefl", {}, "needs a model of the zoo with exits but mlp has none"),
    "negative mu": ("fedprox", {"mu": -1.0}, "mu is -1.0 but must be at least 0"),
    "budget": ("hasa", {"budget": 0.95}, "budget 0.95 cannot be met by widths from 0.2 to 0.8"),
    "hasa cap": ("hasa", {"caps": {"nano": 0.1}}, r"caps.nano is 0.1 but must be at least 0.2"),
    "hasa width 0": ("hasa", {"least": 0.0}, "least width is 0.0"),
    "share too small": ("heterofl", {"levels": {"sizes": [1e-4], "by": "params"}}, "no width of mlp has at most"),
}


@pytest.mark.parametrize(("name", "params", "message"), BAD.values(), ids=BAD)
def test_wrong_parameters_are_one_sentence(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **params)


def test_hasa_needs_counts_to_score() -> None:
    silent = replace_counts(device(), None)
    with pytest.raises(ConfigError, match="device a reports no class counts"):
        make("hasa").assign({"a": silent}, 1)
    with pytest.raises(ConfigError, match="device a reports no class counts"):
        make("hasa").assign({"a": device((0, 0, 0, 0))}, 1)
    assert make("hasa", rule="size").assign({"a": silent}, 1)


def test_hasa_without_pixels_says_so() -> None:
    with pytest.raises(ConfigError, match="device a reports no pixels to score"):
        make("hasa", score="pixels").assign({"a": device()}, 1)


def replace_counts(found: Report, counts: Any) -> Report:
    """The report with other class counts."""
    return structs.replace(found, data=structs.replace(found.data, class_counts=counts))


def test_the_global_model_has_only_what_somebody_trains() -> None:
    method = make("hasa")
    method.assign({"a": device((20, 4, 0, 0)), "b": device()}, 1)
    spec, weights = method.model_of("")
    assert spec == method.spec_of("a")
    assert weights["head.weight"].shape == (4, int(method.width_of("a") * 64))
    assert make("fedrolex", levels={"sizes": [0.5]}).model_of("")[0] == SPEC
    assert zoo.width_of(make("heterofl", levels={"sizes": [0.25, 0.5]}).model_of("")[0]) == 0.5
