"""The suites of unlike models: valid configs, checks as measured, a figure, and the server's costs."""

from argparse import Namespace
from pathlib import Path
from typing import Any, cast

import pytest

from fedwright.benchmarks.harness.suite import Finished, read_suite
from fedwright.benchmarks.harness.tables import signs
from fedwright.benchmarks.suites import pfedclub, pfedclub_server
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.methods.shared.teachers import BoardLimits, Teacher
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation
from fedwright.simulation.worker import Part


def finished(
    label: str,
    accuracy: float,
    *,
    teacher: float | None = None,
    change: float = 0.0,
    server_s: float | None = None,
    seed: int = 1,
) -> Finished:
    """A job measured once, with one teacher."""
    own = (DeviceAccuracy("d-0", round(100 * accuracy), 100, 1.0),)
    seen = {}
    if teacher is not None:
        entry = {"round": 1, "device": "d-0", "accuracy": teacher, "change": change, "parameters": 1000}
        seen = {"teachers": [entry, {**entry, "round": 2}]}
    metrics = [] if server_s is None else [{"server_s": server_s}]
    parts: tuple[Part, ...] = ("test", "test before", "test after")
    return Finished(label, seed, [FleetEvaluation(1, part, own) for part in parts], {}, metrics, seen)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", ["pfedclub-fashion", "pfedclub-cifar"])
def test_suite_files_hold_valid_configs(name: str, quick: bool) -> None:
    found = read_suite(name, quick=quick)
    for setting in found["suite"]["settings"]:
        jobs = pfedclub.jobs_of(found, setting, [1])
        assert {"standalone", "pfedhr", "pfedclub"} <= {job.name.partition(": ")[2] for job in jobs}
        for job in jobs:
            config = config_from_dict(job.config, where=job.name)
            assert config.public.rows > 0
            assert config.method.params.own.models == tuple(found["zoos"][found["settings"][setting]["zoo"]])


@pytest.mark.parametrize("quick", [False, True])
def test_the_studies_hold_valid_configs(quick: bool) -> None:
    found = read_suite("pfedclub-studies", quick=quick)
    for setting in found["suite"]["settings"]:
        own = found["settings"][setting]
        for job in pfedclub.jobs_of(found, setting, [1]):
            config = config_from_dict(job.config, where=job.name)
            assert config.simulate.devices == own.get("devices", 8)
            assert config.fleet.sample_ratio == own.get("active", 1.0)
    labels = {job.name for job in pfedclub.jobs_of(found, "parts", [1])}
    finalists = {
        job.name.partition(": ")[2]: config_from_dict(job.config, where=job.name).method.params.finalists
        for job in pfedclub.jobs_of(found, "parts", [1])
    }
    assert {"parts: K = 3", "parts: K = 5"} <= labels
    assert (finalists["pfedclub"], finalists["one finalist"], finalists["two finalists"]) == (None, 1, 2)


@pytest.fixture
def by() -> dict[str, list[Finished]]:
    """One finished job per label."""
    return {
        "standalone": [finished("standalone", 0.60)],
        "fedmd": [finished("fedmd", 0.62)],
        "pfedhr": [finished("pfedhr", 0.64, teacher=0.3, change=4.8, server_s=3.0)],
        "pfedclub": [finished("pfedclub", 0.66, teacher=0.5, change=0.5, server_s=2.0)],
        "pfedclub+": [finished("pfedclub+", 0.65, teacher=0.5, change=0.05, server_s=2.0)],
        "no order": [finished("no order", 0.61, teacher=0.45, change=0.4, server_s=2.0)],
        "no completion": [finished("no completion", 0.61, teacher=0.55, change=0.1, server_s=2.0)],
    }


def test_checks_say_what_was_measured(by: dict[str, list[Finished]]) -> None:
    found = {entry["name"]: entry for entry in pfedclub.checks({"III": by}, "III", 0.1)}
    assert found["φ pfedhr - φ pfedclub"]["value"] == pytest.approx(4.3)
    # teachers of 5.8 and 1.5 times the pupil's size
    assert found["size of teachers, pfedhr / pfedclub"]["value"] == pytest.approx(5.8 / 1.5, abs=1e-4)
    assert found["size of teachers, pfedhr / pfedclub"]["holds"]
    assert found["server seconds, pfedhr / pfedclub"]["value"] == pytest.approx(1.5)
    assert found["largest φ of any device and round, pfedclub+"]["value"] == pytest.approx(0.05)
    assert found["teacher accuracy, pfedclub - no order, points"]["value"] == pytest.approx(5.0)
    assert not found["teacher accuracy, pfedclub - no completion, points"]["holds"]
    rows = {row["other"]: row for row in pfedclub.difference_rows({"III": by})}
    assert rows["standalone"]["difference"] == pytest.approx(6.0)
    assert "pfedclub" not in rows


def test_the_whole_suite_limits_teachers_in_every_setting() -> None:
    found = read_suite("pfedclub-fashion", quick=False)
    assert all("pfedclub+" in found["settings"][name]["methods"] for name in found["suite"]["settings"])


def test_teachers_that_are_only_a_little_larger_break_the_promise(by: dict[str, list[Finished]]) -> None:
    by["pfedhr"] = [finished("pfedhr", 0.64, teacher=0.3, change=0.6, server_s=3.0)]
    found = {entry["name"]: entry for entry in pfedclub.checks({"III": by}, "III", 0.1)}
    assert found["φ pfedhr - φ pfedclub"]["holds"]
    assert not found["size of teachers, pfedhr / pfedclub"]["holds"]


def test_the_picture_of_sizes_is_listed(
    by: dict[str, list[Finished]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = read_suite("pfedclub-fashion", quick=True)["suite"]["settings"][0]
    monkeypatch.setattr(pfedclub, "finished_runs", lambda suite, found, seeds: {main: by})
    found = pfedclub.run(Namespace(suite="pfedclub-fashion", quick=True, seeds=1, json=tmp_path / "result.json"))
    assert found["pictures"] == ["result.sizes.png"]
    assert (tmp_path / "result.sizes.png").exists()


@pytest.mark.parametrize("setting", ["III", "I"])
def test_a_teacher_over_the_limit_breaks_the_promise_in_any_setting(
    by: dict[str, list[Finished]], setting: str
) -> None:
    runs = {"III": dict(by), "I": dict(by)}
    runs[setting]["pfedclub+"] = [finished("pfedclub+", 0.65, teacher=0.5, change=0.2, server_s=2.0)]
    found = {entry["name"]: entry for entry in pfedclub.checks(runs, "III", 0.1)}
    assert not found["largest φ of any device and round, pfedclub+"]["holds"]


def test_a_report_compares_pfedclub_with_the_others_as_the_paper_does(by: dict[str, list[Finished]]) -> None:
    (other,) = signs(pfedclub.rows(by, {"pfedclub": 71.9, "fedmd": 63.1}))
    assert other["difference"] == "pfedclub - fedmd, accuracy %"
    assert other["same sign"]


def test_sizes_are_listed_and_drawn(by: dict[str, list[Finished]], tmp_path: Path) -> None:
    rows = pfedclub.size_rows({"III": by})
    assert [row["method"] for row in rows] == ["pfedhr", "pfedclub", "pfedclub+", "no order", "no completion"]
    assert rows[0]["d-0"] == pytest.approx(4.8)
    pfedclub.draw_sizes(by, tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")


def test_teachers_are_measured_on_their_pupils_test_rows() -> None:
    method = pfedclub_server.fleet(1)
    dealt = deal(SimulateSection("digits", partition="iid", devices=1, rows=100), seed=1)
    watch = pfedclub.TeacherWatch(cast(Any, None), dealt)
    watch(method, 1)
    assert watch.seen() == {"teachers": []}
    spec = method.spec_of("mlp")
    digits = type(spec)("mlp", dealt.input_shape, 10)
    device = next(iter(dealt.shares))
    method.specs[device], method.weights[device] = digits, method.initial(digits)
    method.teachers = {device: Teacher(digits, method.initial(digits))}
    watch(method, 2)
    (entry,) = watch.seen()["teachers"]
    assert (entry["round"], entry["device"], entry["change"]) == (2, device, 0.0)
    assert 0 <= entry["accuracy"] < 0.5


def test_the_servers_costs_are_counted() -> None:
    cost = pfedclub_server.grouping_cost(2)
    assert cost["blocks"] == 9
    method = pfedclub_server.fleet(2)
    pupils = pfedclub_server.pupils_of(method)
    assert set(method.make_teachers(pupils, {device: BoardLimits(1, 10**12) for device in pupils})) == {"d-0", "d-1"}
