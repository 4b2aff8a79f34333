"""Suites: their files are read strictly, their jobs run, and their checks say what was measured."""

from argparse import Namespace

import numpy as np
import pytest

from fedwright.benchmarks.harness.suite import Finished, Job, merged, read_suite, run_job, seeds_of
from fedwright.benchmarks.suites import aggregate, hasa_cifar, hasa_titles, sizes_fashion
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.simulation.dealing import deal, thin
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation

DEVICES = ("d0", "d1", "d2", "d3")


def finished(
    name: str,
    *,
    seed: int = 1,
    val: tuple[float, float, float] = (3.0, 2.0, 4.0),
    test: tuple[float, float, float] = (0.1, 0.2, 0.3),
    width: float = 0.5,
) -> Finished:
    """A job whose devices are all alike: losses on val and accuracies on test by round."""
    entries = []
    for number, (loss, accuracy) in enumerate(zip(val, test, strict=True), 1):
        own = [DeviceAccuracy(d, 0, 100, np.log(loss)) for d in DEVICES]
        entries.append(FleetEvaluation(number, "val", tuple(own)))
        own = [DeviceAccuracy(d, round(100 * accuracy), 100, np.log(10 - 10 * accuracy)) for d in DEVICES]
        entries.append(FleetEvaluation(number, "test", tuple(own)))
    entries.append(FleetEvaluation(len(val), "test after", entries[-1].devices))
    records = {d: DeviceRecord(d, samples=10, width=width) for d in DEVICES}
    return Finished(name, seed, entries, records, [])


@pytest.mark.parametrize("name", ["hasa-titles", "hasa-cifar", "sizes-fashion"])
@pytest.mark.parametrize("quick", [False, True])
def test_suite_files_hold_valid_configs(name: str, quick: bool) -> None:
    found = read_suite(name, quick=quick)
    params = found.get("params", {"hasa": {}})
    for method, own in params.items():
        config = merged(found["config"], {"method": {"name": method, **own}, "run": {"rounds": 1}})
        assert config_from_dict(config, where=name).method.name == method
    assert found["suite"]["rounds"] >= (6 if quick else 12)


def test_table_two_has_its_methods_at_size_driven_widths() -> None:
    found = read_suite("hasa-titles", quick=False)
    assert found["suite"]["table2"] == list(found["table2"]) == list(found["paper2"])
    made = {
        name: config_from_dict(merged(found["config"], {"method": own, "run": {"rounds": 1}}), where=name).method.params
        for name, own in found["table2"].items()
    }
    assert [(own.rule, own.submodels) for own in made.values()] == [
        ("hasa", "first"),
        ("uniform", "first"),
        ("size", "first"),
        ("size", "rolling"),
        ("size", "random"),
    ]


def test_a_choice_of_the_last_round_does_not_hold() -> None:
    assert hasa_titles.behind({"hasa": [finished("hasa")]})[0]["holds"]
    late = finished("hasa", val=(9.0, 8.0, 7.0))
    assert not hasa_titles.behind({"hasa": [finished("hasa")], "size": [late]})[0]["holds"]


def test_the_study_of_pixels_chooses_on_validation_rows() -> None:
    job = finished("hasa", width=0.5)
    job.seen["common"] = [0.1, 0.2, 0.3]
    found = hasa_cifar.row("hasa", [job], [71.71, 59.83, 62.06])
    assert hasa_cifar.chosen(job) == 0
    assert (found["global at 0.5"], found["budget of squares"]) == pytest.approx((10.0, 0.25))
    names = {entry["name"]: entry["holds"] for entry in hasa_cifar.checks({"hasa": [job]}, budget=0.25)}
    assert names == {"realised budget of squares, hasa": True, "measurements behind the chosen one, hasa": True}


def test_the_round_is_chosen_on_validation_data() -> None:
    job = finished("hasa")
    assert hasa_titles.chosen(job) == 1
    assert hasa_titles.figure(job, "mean") == pytest.approx(0.2)


def test_checks_compare_with_inverse_and_size() -> None:
    better, worse = finished("hasa"), finished("inverse", test=(0.1, 0.15, 0.3))
    runs = {"hasa": [better], "inverse": [worse], "size": [better]}
    found = {entry["name"]: entry for entry in hasa_titles.checks(runs, budget=0.5)}

    assert found["hasa - inverse, mean accuracy in points"] == {
        "name": "hasa - inverse, mean accuracy in points",
        "value": 5.0,
        "target": "> 0",
        "holds": True,
    }
    assert found["hasa - inverse, perplexity"]["value"] == pytest.approx(-0.5)
    assert not found["hasa - size, mean accuracy in points"]["holds"]
    assert found["realised budget of hasa"]["holds"]


def test_a_missed_budget_does_not_hold() -> None:
    runs = {"hasa": [finished("hasa", width=0.4)]}
    assert [entry["holds"] for entry in hasa_titles.checks(runs, budget=0.5)] == [False]


def test_the_difference_to_uniform_is_a_curve() -> None:
    rows = hasa_titles.curve([finished("hasa")], [finished("uniform", test=(0.05, 0.25, 0.3))])
    assert [round(row["hasa - uniform"], 6) for row in rows] == [5.0, -5.0, 0.0]


def test_sizes_are_grouped_as_the_methods_dealt_them() -> None:
    job = finished("fiarse")
    own = tuple(DeviceAccuracy(f"device-{i}", i, 10, 1.0) for i in range(8))
    job = Finished("fiarse", 1, [FleetEvaluation(1, "test", own)], job.devices, [])
    assert sizes_fashion.by_size(job, 4) == pytest.approx([0.2, 0.3, 0.4, 0.5])


def test_sizes_checks_name_the_smallest_size() -> None:
    runs = {name: [finished(name)] for name in ("heterofl", "fedrolex", "feddropout", "fiarse")}
    found = sizes_fashion.checks(runs, [1.0, 0.25, 0.0625, 0.015625])
    assert len(found) == 5
    assert not any(entry["holds"] for entry in found)


def test_thinning_keeps_every_device_and_its_tests() -> None:
    whole = deal(SimulateSection(devices=3, alpha=5.0), seed=1)
    fewer = thin(whole, 0.5, seed=1)
    for device, share in whole.shares.items():
        assert len(fewer.shares[device].train) == round(0.5 * len(share.train))
        assert set(fewer.shares[device].train) <= set(share.train)
        np.testing.assert_array_equal(fewer.shares[device].test, share.test)


def test_a_job_is_a_simulation() -> None:
    config = {
        "run": {"rounds": 1},
        "model": {"model": "mlp"},
        "method": {"name": "hasa", "least": 0.25, "budget": 0.5},
        "simulate": {"devices": 3, "rows": 200, "alpha": 5.0, "evaluate_every": 1},
        "update": {"evaluate": False},
    }
    found = run_job(Job("small", 1, config, share=0.5, parts=("test",)))
    assert len(found.curve("test", "mean")) == 1
    assert {record.rounds for record in found.devices.values()} == {1}


def test_seeds_as_asked() -> None:
    assert seeds_of({"seeds": 3}, None) == [1, 2, 3]
    assert seeds_of({"seeds": 3}, 1) == [1]


def test_aggregate_measures_against_a_copy() -> None:
    found = aggregate.run(Namespace(quick=True))
    names = {entry["name"] for entry in found["checks"]}
    widths = {f"speed against a copy at width {width} (prefix)" for width in aggregate.WIDTHS}
    windows = {f"speed against a copy at width {width} (window)" for width in aggregate.WIDTHS[1:]}
    assert names == widths | windows | {"memory of a round, in models"}
    assert len(found["tables"]["aggregation of ResNet-18, 11 M parameters"]) == 7
    memory = next(entry for entry in found["checks"] if entry["name"].startswith("memory"))
    assert memory["holds"]


def test_the_titles_suite_puts_tables_and_checks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hasa_titles, "run_jobs", lambda jobs: [finished(job.name, seed=job.seed) for job in jobs])
    monkeypatch.setattr(hasa_titles, "always_unknown", lambda section: (3437, [0.1, 0.2]))
    found = hasa_titles.run(Namespace(quick=True, seeds=2))
    rows, second, pairs, second_pairs, curve, floor = found["tables"].values()
    assert second == second_pairs == []
    assert [row["rule"] for row in rows] == ["hasa", "uniform", "size", "inverse"]
    assert (rows[0]["mean"], rows[0]["paper mean"]) == (pytest.approx(20.0), 14.32)
    assert [row["figure"] for row in pairs] == ["mean", "worst", "PPL, turned"] * 3
    assert [row["round"] for row in curve] == [1, 2, 3]
    assert floor == [{"mean": pytest.approx(15.0), "worst": pytest.approx(10.0)}]
    assert found["seeds"] == [1, 2]


def test_the_sizes_suite_puts_tables_and_checks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes_fashion, "run_jobs", lambda jobs: [finished(job.name, seed=job.seed) for job in jobs])
    found = sizes_fashion.run(Namespace(quick=True, seeds=1))
    rows = next(iter(found["tables"].values()))
    assert {row["method"] for row in rows} == {"heterofl", "fedrolex", "feddropout", "fiarse", "scalefl"}
    assert rows[0]["0.0156"] == pytest.approx(30.0)
