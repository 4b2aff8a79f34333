"""`fedwright device profile`: probes from the package, the fit on made-up times, a real measurement, the file."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from fedwright.cli.main import main
from fedwright.device_runtime import facts
from fedwright.device_runtime.facts import Clocks, Health
from fedwright.device_runtime.profiler import profile as profiles
from fedwright.device_runtime.profiler import store
from fedwright.device_runtime.profiler.fit import fit_kind, non_negative
from fedwright.device_runtime.profiler.measure import OperatorTime, ProbeTime, time_probe, trace_steps
from fedwright.device_runtime.profiler.pack import Probe, load_probes, pack_probes, read_probes
from fedwright.protocol.errors import BadArtifact, ConfigError
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Profile, predict
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure
from make_probes import make_probes


@pytest.fixture(scope="module")
def probes() -> list[Probe]:
    return load_probes()


@pytest.fixture(scope="module")
def few(probes: list[Probe]) -> list[Probe]:
    return [probe for probe in probes if probe.name in ("linear", "mean pool", "lstm", "residual narrow")]


def test_the_package_carries_the_probes_that_the_builder_makes(probes: list[Probe]) -> None:
    made = make_probes()

    # By name, so that a failure says what must be made anew with scripts/make_probes.py.
    assert [old.name for old in probes] == [new.name for new in made]
    assert [old.name for old, new in zip(probes, made, strict=True) if old != new] == []


def test_probes_survive_their_file(few: list[Probe]) -> None:
    assert read_probes(pack_probes(few)) == few
    with pytest.raises(BadArtifact, match="install fedwright again"):
        read_probes(b"damaged")


def test_non_negative_fit_by_hand() -> None:
    rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])

    # 5 + 2x is met exactly; 3 - x is not, and its best non-negative line is flat at the mean 1.
    np.testing.assert_allclose(non_negative(rows, np.array([7.0, 9.0, 11.0])), [5.0, 2.0], atol=1e-9)
    np.testing.assert_allclose(non_negative(rows, np.array([2.0, 1.0, 0.0])), [1.0, 0.0], atol=1e-9)


def test_the_coefficients_of_made_up_times_are_found_again() -> None:
    rng = np.random.default_rng(0)
    true = [3e-6, 1e-11, 2e-10, 0.0, 0.0, 0.0, 0.0]
    samples = []
    for _ in range(30):
        amounts = (1.0, float(rng.uniform(1e6, 1e8)), float(rng.uniform(1e4, 1e6)), 0.0, 0.0, 0.0, 0.0)
        samples.append(OperatorTime("Conv", amounts, float(np.dot(true, amounts))))

    np.testing.assert_allclose(fit_kind(samples), true, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize(("share", "blamed"), [(0.01, False), (0.5, True)], ids=["a few elements", "a fair part"])
def test_a_cache_is_blamed_only_where_enough_lies_beyond_it(share: float, blamed: bool) -> None:
    samples = []
    for step in range(1, 9):
        elements = 1e5 * step
        beyond = share * elements if step > 4 else 0.0
        # The larger half takes a tenth longer than its elements say.
        seconds = 1e-9 * elements * (1.1 if step > 4 else 1.0)
        samples.append(OperatorTime("Add", (1.0, 0.0, elements, 0.0, beyond, 0.0, 0.0), seconds))

    assert (fit_kind(samples)[FEATURES.index("spill")] > 0) == blamed


def test_a_probe_is_timed_by_operator_and_as_a_whole(few: list[Probe]) -> None:
    started_s = time.monotonic()
    times = time_probe(next(probe for probe in few if probe.name == "linear"), threads=1)
    took_s = time.monotonic() - started_s

    small, large = times
    assert (small.batch, large.batch) == (8, 64)
    assert {"Gemm", "LogSoftmax"} <= {operator.kind for operator in small.operators}
    assert 0 < small.step_s < large.step_s < took_s


def test_a_convolution_in_blocks_is_timed_as_one_operator(few: list[Probe]) -> None:
    probe = next(probe for probe in few if probe.name == "residual narrow")

    (operators, *_) = trace_steps(probe, threads=1)

    kinds = {operator.kind for operator in operators}
    assert "Conv" in kinds
    assert not any(kind.startswith("Reorder") for kind in kinds)


def test_a_measured_profile_predicts_a_model_it_never_saw(few: list[Probe]) -> None:
    shown = []
    started_s = time.monotonic()
    found = profiles.measure_profile(threads=1, probes=few, progress=lambda *step: shown.append(step))
    took_s = time.monotonic() - started_s

    spec = ModelSpec("mlp", (64,), 10)
    work = build(Structure(spec, optimizer=Optimizer(momentum=0.9)), zoo.create(spec, seed=0)).manifest.work
    prediction = predict(found, work, batch=32)
    assert 1e-6 < prediction.low_s < prediction.step_s < prediction.high_s < took_s
    assert all(value >= 0 for row in found.kinds.values() for value in row)
    assert (shown[0][:2], shown[-1][:2]) == ((0, 8), (8, 8))


@pytest.mark.parametrize(
    ("model", "shape"),
    [("lenet", (1, 28, 28)), ("resnet8", (3, 32, 32)), ("mobilenet-v2", (3, 32, 32)), ("vit-tiny", (3, 32, 32))],
)
def test_predictions_grow_with_width(probes: list[Probe], model: str, shape: tuple[int, int, int]) -> None:
    kinds = {
        kind: [1e-6, 1e-11, 1e-10, 1e-10, 1e-10, 1e-10, 1e-9]
        for probe in probes
        for kind in probe.artifact.manifest.work
    }
    has = Profile("b", "r", 1, kinds=kinds)
    times = []
    for width in (0.1, 0.25, 0.5, 1.0):
        spec = zoo.scaled(ModelSpec(model, shape, 10), width)
        work = build(Structure(spec), zoo.create(spec, seed=0)).manifest.work
        times.append(predict(has, work, batch=16).step_s)

    assert times == sorted(times)


def times_of(*steps: float) -> list[ProbeTime]:
    return [ProbeTime("p", 1, [], step) for step in steps]


def test_passes_that_differ_are_told() -> None:
    assert profiles.disagreement(times_of(1.0, 2.0, 4.0), times_of(1.1, 2.0, 8.0)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("repeat", "before", "after", "said"),
    [
        pytest.param(0.2, Health(), Health(), "differ by 20%", id="busy"),
        pytest.param(0.0, Health(), Health(throttled=("under-voltage",)), "under-voltage", id="throttled"),
        pytest.param(0.0, Health(), Health(clocks=Clocks(6e8, 6e8, 1.8e9)), "0.6 of 1.8 GHz", id="slow clock"),
        pytest.param(0.0, Health(power_mode="5W"), Health(power_mode="10W"), "power mode", id="power mode"),
    ],
)
def test_what_makes_a_profile_doubtful_is_said(repeat: float, before: Health, after: Health, said: str) -> None:
    [warning] = profiles._warnings(repeat, before, after)

    assert said in warning


def test_profiles_for_other_threads_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "profile.json"
    mine = Profile(facts.board_model(), facts.runtime(), 1)
    store.save_profile(path, mine)
    store.save_profile(path, Profile(mine.board, mine.runtime, 2, kinds={"Add": [0.0] * len(FEATURES)}))

    assert len(json.loads(path.read_text())["profiles"]) == 2
    assert store.find_profile(path, threads=1) == mine
    assert store.find_profile(path, threads=4) is None
    assert store.find_profile(tmp_path / "absent", threads=1) is None


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("nonsense")

    with pytest.raises(ConfigError, match="remove it"):
        store.find_profile(tmp_path / "bad", threads=1)


def test_the_command_writes_and_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, few: list[Probe]
) -> None:
    monkeypatch.setattr(profiles, "load_probes", lambda: few[:1])

    assert main(["device", "profile", "--threads", "1", "--json", "--out", str(tmp_path / "p.json")]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["threads"] == 1
    assert list(json.loads((tmp_path / "p.json").read_text())["profiles"].values()) == [shown]
