"""FRAMP's suites: what they see of a run, their pictures, and rounds on the pieces of a graph."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedwright.benchmarks.harness import generated_plots
from fedwright.benchmarks.harness.generated_views import cumulative
from fedwright.benchmarks.harness.suite import Finished, Job, merged, read_suite, run_job
from fedwright.benchmarks.suites import framp_fashion, framp_sizes
from fedwright.benchmarks.suites.framp_fashion import SIZES, jobs_of, view
from fedwright.server_runtime.config import config_from_dict
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation
from helpers.rings import save_rings

SHARES = [1.0, 0.25, 0.0625, 0.015625]
PARAMS = {"sizes": [1.0, 0.5, 0.25, 0.125]}


def job(method: str) -> Job:
    config = {
        "run": {"rounds": 2},
        "model": {"model": "cnn-gn"},
        "method": {"name": method, **PARAMS},
        "train": {"batch": 16, "learning_rate": 0.1},
        "update": {"evaluate": False},
        "fleet": {"per_round": 2},
        "simulate": {
            "dataset": "digits",
            "devices": 5,
            "bystanders": 1,
            "rows": 150,
            "alpha": 1.0,
            "evaluate_every": 1,
        },
    }
    return Job(method, 3, config, watch=view)


@pytest.mark.parametrize("method", ["framp", "fiarse"])
def test_a_run_is_looked_at(method: str) -> None:
    finished = run_job(job(method))

    seen = msgspec.json.decode(msgspec.json.encode(finished), type=Finished).seen
    assert len(seen["union"]) == SIZES
    assert all(0 <= value <= 1 for value in seen["union"])
    # every size has been counted, and more of the entries were ever chosen where devices have more
    assert seen["coverage"] == sorted(seen["coverage"], reverse=True)
    assert seen["coverage"][0] == 1.0
    assert 0.12 < seen["coverage"][3] < 0.5
    assert {len(row["mean"]) for row in seen["early"] + seen["late"]} == {64}


def test_choices_are_added_up_from_the_most_chosen_entry() -> None:
    curve = cumulative(np.array([0, 6, 0, 2]))
    assert curve[0] == 0
    assert curve[25] == pytest.approx(6 / 8)
    assert curve[50] == curve[100] == 1


def finished(name: str, accuracy: float) -> Finished:
    devices = tuple(DeviceAccuracy(f"d-{n}", round(100 * accuracy), 100, 1.0) for n in range(6))
    prototypes = [{"class": n % 3, "device": f"d-{n}", "mean": [float(n), 1.0, -n / 2]} for n in range(6)]
    seen = {"union": [0.5] * 4, "coverage": [1.0, 0.5, 0.2, 0.1], "early": prototypes, "late": prototypes}
    seen |= {"curves": [cumulative(np.arange(20))] * 4}
    entries = [FleetEvaluation(1, "test", devices), FleetEvaluation(1, "test after", devices)]
    return Finished(name, 1, entries, {}, [], seen)


def test_pictures_lie_beside_the_result(tmp_path: Path) -> None:
    runs = {"framp": [finished("framp", 0.9)], "fiarse": [finished("fiarse", 0.8)]}
    names = generated_plots.draw(runs, SHARES, tmp_path / "found.json")
    assert names == ["found-coverage.png", "found-accuracy.png", "found-prototypes.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_differences_are_paired_by_seed() -> None:
    runs = {"framp": [finished("framp", 0.9), finished("framp", 0.7)]}
    runs["fiarse"] = [finished("fiarse", 0.8), finished("fiarse", 0.75)]
    rows = framp_fashion.signs(runs, unseen=4)
    assert [(row["devices"], row["own training"]) for row in rows] == [
        ("1/64", "before"), ("local", "before"), ("local", "after"), ("unseen", "before"), ("unseen", "after"),
    ]  # fmt: skip
    assert [row["difference"] for row in rows] == pytest.approx([2.5] * 5)
    assert {row["wins"] for row in rows} == {"1 of 2"}


def test_the_graph_suite_holds_valid_configs() -> None:
    found = read_suite("framp-cora", quick=True)
    for label, params in found["params"].items():
        config = config_from_dict(merged(found["config"], {"method": {"name": label, **params}}), where="framp-cora")
        assert config.method.name in found["paper"]


@pytest.fixture
def small_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rings of ten papers, each about one subject, in the place of Cora."""
    save_rings(tmp_path)
    monkeypatch.setenv("FEDWRIGHT_DATA", str(tmp_path))


def test_the_union_model_is_measured_inside_every_piece(small_graph: None) -> None:
    found = read_suite("framp-cora", quick=True)
    found["suite"] |= {"rounds": 2, "devices": 4, "bystanders": 1, "per_round": 2}
    found["params"] = {"framp": {"sizes": [1.0, 0.5]}}
    done = run_job(jobs_of(found, [1])[0])
    assert [entry.part for entry in done.evaluations] == ["test", "test after"]
    assert {device.n for entry in done.evaluations for device in entry.devices} == {2}
    assert len(done.seen["union"]) == 4
    assert all(0 <= value <= 1 for value in done.seen["union"])


def test_sizes_that_nobody_trained_are_cut_from_the_same_model() -> None:
    found = read_suite("framp-sizes", quick=True)
    found["suite"] |= {"rounds": 1, "rows": 240, "devices": 4, "per_round": 2}
    found["config"]["simulate"] |= {"dataset": "digits", "alpha": 1.0}
    found["methods"] = {"framp": "sizes", "heterofl": "levels"}
    jobs = framp_sizes.jobs_of(found, [1])
    assert [job.config["simulate"]["bystanders"] for job in jobs] == [0, 1, 0, 1]
    runs = {job.name: [run_job(job)] for job in jobs}
    seen = runs["heterofl, all train"][0].seen
    shares = [*found["sizes"]["trained"], *found["sizes"]["unseen"]]
    assert {f"{share:.3g}" for share in shares} <= seen.keys()
    # The last device has the least size: a bystander where it is left out, which is measured still.
    row = framp_sizes.excluded_row("framp", runs, found)
    assert row.keys() == {"method", "1/64, all train", "others, all train", "1/64, no 1/64", "others, no 1/64"}
    pairs = framp_sizes._pairs(runs, found)
    assert [pair["what"] for pair in pairs] == ["unseen sizes", "1/64 left out of training"]
