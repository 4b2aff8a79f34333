"""The FedConv suites: valid configs, tables and checks from what was measured, costs that are counted, pictures."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedwright.benchmarks.harness import fedconv_plots
from fedwright.benchmarks.harness.fedconv_watch import GLOBAL, GlobalAccuracy
from fedwright.benchmarks.harness.suite import Finished, Job, read_suite
from fedwright.benchmarks.suites import fedconv, fedconv_devices, fedconv_server
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation

DEVICES = {"device-0": 0.25, "device-1": 0.5, "device-2": 0.75, "device-3": 1.0}


def finished(job: Job) -> Finished:
    """A job whose devices get 80 of 100 right; FedConv's global model is right in 0.9, all others' in 0.7."""
    accuracy = 0.9 if job.name.startswith("fedconv |") else 0.7
    own = tuple(DeviceAccuracy(device, 80, 100, 1.0) for device in DEVICES)
    records = {
        device: DeviceRecord(
            device, samples=10, width=width, rounds=2, cpu_s=0.5 * job.seed, need_bytes=10**6, bytes_up=10**5,
            bytes_down=2 * 10**5,
        )
        for device, width in DEVICES.items()
    }  # fmt: skip
    entries = [FleetEvaluation(number, "test before", own) for number in (1, 2)]
    entries.append(FleetEvaluation(2, "test after", own))
    return Finished(job.name, job.seed, entries, records, [], {GLOBAL: [0.1, accuracy, accuracy]})


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", ["fedconv-fashion", "fedconv-har"])
def test_suite_files_hold_valid_configs(name: str, quick: bool) -> None:
    found = read_suite(name, quick=quick)
    jobs = fedconv._jobs(found, 1)
    for job in jobs:
        config = config_from_dict(job.config, where=job.name)
        assert config.public.rows > 0
    labels = {job.name.partition(" | ")[0] for job in jobs}
    assert {*found["params"], *found["suite"].get("parts", found["ablations"])} <= labels
    assert {"fedmd", "standalone", "heterofl", "fedrolex", "fedavg, smallest", "slice-tuned"} <= labels


def test_the_whole_suite_has_the_papers_divisions_and_sensitivity() -> None:
    jobs = [job.name for job in fedconv._jobs(read_suite("fedconv-fashion", quick=False), 1)]
    for alpha in ("0.05", "0.1", "1", "10000"):
        assert f"fedconv | alpha {alpha}" in jobs
    assert {f"{part} | alpha 0.1" for part in read_suite("fedconv-fashion", quick=False)["ablations"]} <= set(jobs)
    assert {"ratio 0.25 | alpha 0.1", "public 100 | alpha 0.1", "devices 16 | alpha 0.1"} <= set(jobs)


def test_tables_and_checks_are_those_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedconv, "run_jobs", lambda jobs: [finished(job) for job in jobs])
    monkeypatch.setattr(fedconv, "server_alone", lambda found, division, seed: 0.5)
    found = fedconv.run(Namespace(suite="fedconv-fashion", quick=False, seeds=2, json=None))
    rows = {row["method"]: row for row in found["tables"]["accuracy in percent"]}
    assert rows["fedconv"]["alpha 0.1: global"] == pytest.approx(90)
    assert rows["fedmd"]["alpha 0.1: global"] is None
    assert rows["serveralone"]["alpha 1: global"] == pytest.approx(50)
    cost = {row["method"]: row for row in found["tables"]["cost of a device"]}
    # half a second of CPU in two rounds of seed 1, a whole one in those of seed 2
    assert cost["fedconv"]["CPU ms per round"] == pytest.approx(375)
    assert cost["fedconv"]["predicted MB"] == pytest.approx(1)
    assert cost["fedconv"]["MB per round"] == pytest.approx(0.15)
    assert cost["fedconv"]["paper s"] == 40.7
    assert [row["form"] for row in found["tables"]["without its parts"]][:2] == ["fedconv", "no pre-training"]
    assert [row["ratio"] for row in found["tables"]["sensitivity: ratio"]] == [0.25, 0.5, 0.75]
    checks = {entry["name"]: entry for entry in found["checks"]}
    assert checks["global, fedconv - heterofl, points, alpha 0.1"]["value"] == pytest.approx(20)
    assert checks["bytes down at equal width, fedconv / heterofl, farthest from 1, alpha 0.05"]["holds"]
    targets = {name: entry["target"] for name, entry in checks.items()}
    assert targets["global, fedconv - heterofl, points, alpha 0.1"] == "> 0"
    assert targets["global, fedconv - heterofl, points, alpha 10000"] == "reported"
    assert targets["global, fedconv - slice-tuned, points, alpha 0.1"] == "reported"


def with_bytes(**bytes_of: Any) -> list[Finished]:
    """One job whose devices of a half have other bytes than the rest."""
    job = finished(Job("fedconv | alpha 1", 1, {}))
    changed = replace(job.devices["device-1"], **bytes_of)
    return [replace(job, devices={**job.devices, "device-1": changed})]


@pytest.mark.parametrize(
    ("bytes_of", "broken"),
    [
        ({}, []),
        ({"bytes_down": 201_000}, []),
        ({"bytes_down": 203_000}, ["down"]),
        ({"bytes_down": 197_000}, ["down"]),
        ({"bytes_up": 110_000}, ["up"]),
        ({"bytes_up": 10_000}, []),
        ({"width": 0.3}, []),
    ],
    ids=["equal", "half a percent", "more down", "less down", "more up", "packed smaller", "a width of its own"],
)
def test_bytes_are_compared_as_recorded_at_equal_width(bytes_of: dict[str, float], broken: list[str]) -> None:
    others = {(label, "alpha 1"): with_bytes() for label in ("heterofl", "heterofl, all classes")}
    runs = {("fedconv", "alpha 1"): with_bytes(**bytes_of), **others}
    found = fedconv.bytes_checks(runs, ["alpha 1"])
    assert [entry["name"].split()[1] for entry in found if not entry["holds"]] == broken


def test_bytes_up_are_promised_beside_what_trains_the_same_classes() -> None:
    """HeteroFL's own loss leaves rows of absent classes out, which says nothing of FedConv's traffic."""
    less = with_bytes(bytes_up=50_000)
    runs = {("fedconv", "alpha 0.1"): with_bytes(), ("heterofl", "alpha 0.1"): less}
    found = fedconv.bytes_checks({**runs, ("heterofl, all classes", "alpha 0.1"): with_bytes()}, ["alpha 0.1"])
    # one of four widths at twice the bytes: (2 + 1 + 1 + 1) / 4
    assert [(entry["value"], entry["target"]) for entry in found] == [
        (1.0, "1 ± 0.01"),
        (1.0, "<= 1.01"),
        (1.25, "reported"),
    ]
    broken = fedconv.bytes_checks({**runs, ("heterofl, all classes", "alpha 0.1"): less}, ["alpha 0.1"])
    assert [entry["holds"] for entry in broken] == [True, False, True]


def test_nothing_is_equal_without_a_common_width() -> None:
    job = with_bytes()[0]
    narrow = [replace(job, devices={"device-9": replace(job.devices["device-0"], width=0.1)})]
    runs = {("fedconv", "alpha 1"): narrow, ("heterofl", "alpha 1"): [job], ("heterofl, all classes", "alpha 1"): [job]}
    assert not fedconv.bytes_checks(runs, ["alpha 1"])[0]["holds"]


def test_the_motion_suite_is_split_by_person(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Job] = []

    def run_jobs(jobs: list[Job]) -> list[Finished]:
        seen.extend(jobs)
        return [finished(job) for job in jobs]

    monkeypatch.setattr(fedconv, "run_jobs", run_jobs)
    monkeypatch.setattr(fedconv, "server_alone", lambda found, division, seed: 0.5)
    found = fedconv.run(Namespace(suite="fedconv-har", quick=True, seeds=1, json=None))
    assert {job.config["simulate"]["partition"] for job in seen} == {"owner"}
    assert found["tables"]["accuracy in percent"][0]["by person: devices"] == pytest.approx(80)


def test_the_global_model_is_measured_on_all_test_rows() -> None:
    shares = {"a": SimpleNamespace(test=np.array([0, 1])), "b": SimpleNamespace(test=np.array([3]))}
    dealt = SimpleNamespace(x=np.eye(4, 2, dtype=np.float32), y=np.array([0, 1, 1, 0]), shares=shares)
    spec = ModelSpec("mlp", (2,), 2)
    watcher = GlobalAccuracy(cast(Any, None), cast(Any, dealt))
    weights = {name: np.zeros_like(value) for name, value in initial_weights(zoo.create(spec, seed=0)).items()}
    weights["head.bias"] = np.array([1, 0], np.float32)
    watcher(cast(Any, SimpleNamespace(model_of=lambda device: (spec, weights))), 1)
    # always class 0: right in rows 0 and 3, wrong in row 1
    assert watcher.seen() == {GLOBAL: [pytest.approx(2 / 3)]}


def test_server_costs_are_counted() -> None:
    memory = fedconv_server.memory_cost(fedconv_server.MODELS[0])
    assert memory["shared over separate"] < 0.2
    growth = fedconv_server.dilation_cost(fedconv_server.MODELS[0], 2, 1, 1)
    assert growth["ms per step"] == pytest.approx(2 * growth["ms per device"])
    cost = fedconv_server.tuning_cost(fedconv_server.MODELS[0], 1, 1)
    assert cost["over the large"] == pytest.approx(cost["tuning"] / cost["large model"])


@pytest.mark.parametrize("name", ["fedconv-fashion", "fedconv-har"])
def test_pictures_show_models_with_the_suites_settings(name: str) -> None:
    found = read_suite(name, quick=True)
    params = fedconv_plots.shown_params(found)
    wanted = {key: value for key, value in found["params"]["fedconv"].items() if key != "levels"}
    assert {key: getattr(params, key) for key in wanted} == wanted
    assert params.levels.sizes == (0.25, 0.5, 0.75, 1.0)


def test_pictures_are_drawn(tmp_path: Path) -> None:
    found = read_suite("fedconv-fashion", quick=True)
    small = {"model": {"model": "cnn-small"}, "simulate": {"dataset": "digits", "alpha": 5.0}}
    found["config"] = {**found["config"], **small}
    found["suite"] |= {"devices": 3, "rows": 300, "public": 60, "sensitivity": True}
    rows = {kind: [{kind: 1.0, "global": 50.0, "mean": 60.0}] for kind in ("ratio", "public", "devices")}
    tables = {f"sensitivity: {kind}": own for kind, own in rows.items()}
    names = fedconv_plots.draw(found, tables, tmp_path / "result.json")
    assert names == ["result-sensitivity.png", "result-distributions.png", "result-maps.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


@pytest.mark.parametrize("quick", [False, True])
def test_the_devices_suite_holds_valid_configs_and_all_forms(quick: bool) -> None:
    found = read_suite("fedconv-devices", quick=quick)
    jobs = {job.name: config_from_dict(job.config, where=job.name) for job in fedconv_devices.jobs_of(found, 1)}
    assert {"fedconv", "clusters", "one dilation per device", "exchange", "personal head", "heterofl"} <= jobs.keys()
    assert jobs["exchange"].method.params.exchange
    assert jobs["one dilation per device"].method.params.group == "device"
    # As many tasks with half of the devices in a round as with all.
    half, whole = jobs["fedconv, 0.5 of the devices"], jobs["fedconv"]
    assert half.fleet.sample_ratio * half.run.rounds == whole.run.rounds


def test_devices_are_compared_at_the_same_moment() -> None:
    found = read_suite("fedconv-devices", quick=True)
    runs = {}
    for job in fedconv_devices.jobs_of(found, 1):
        right = {"test": 70, "test before": 60, "test after": 80 if job.name == "fedconv" else 75}
        entries = [
            FleetEvaluation(3, cast(Any, part), (DeviceAccuracy("d", count, 100, 1.0),))
            for part, count in right.items()
        ]
        records = {"d": DeviceRecord("d", samples=10, rounds=2, bytes_up=10**6, bytes_down=3 * 10**6)}
        runs[job.name] = [Finished(job.name, 1, entries, records, [{"groups": 4.0}], {GLOBAL: [0.5]})]
    rows = {row["form"]: row for row in fedconv_devices.personal_rows(found, runs)}
    assert (rows["fedconv"]["before own training"], rows["fedconv"]["after own training"]) == (60, 80)
    assert rows["heterofl"]["own model"] == 70
    assert rows["fedconv"]["MB per device and round"] == pytest.approx(2.0)
    differences = {row["other"]: row["difference"] for row in fedconv_devices.difference_rows(found, runs)}
    assert differences["heterofl"] == pytest.approx(5.0)
    assert [row["share"] for row in fedconv_devices.participation_rows(found, runs)] == [0.5, 1.0, 0.5, 1.0]
    first = fedconv_devices.checks(found, runs)[0]
    assert first["holds"]
    assert first["value"] == pytest.approx(20.0)
