"""The suite of lying devices: its file, its jobs, and checks that can fail."""

from argparse import Namespace
from typing import Any

import numpy as np
import pytest

from fedwright.benchmarks.harness.suite import Finished, run_job
from fedwright.benchmarks.suites import hostile
from fedwright.server_runtime.config import config_from_dict
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation

FOUND = hostile.chosen("hostile", quick=True)


def finished(name: str, accuracy: float) -> Finished:
    """Ten devices of which the first is always wrong."""
    devices = tuple(DeviceAccuracy(f"d{n}", 0 if n == 0 else round(100 * accuracy), 100, 0.0) for n in range(10))
    return Finished(name, 1, [FleetEvaluation(1, "test", devices)], {}, [], {"back door": 0.1})


def runs(under_attack: float) -> dict[str, list[Finished]]:
    made = {}
    for job in hostile.jobs_of(FOUND, seed=1):
        plain, peace = job.name.startswith("plain"), hostile.PEACE in job.name or hostile.ABSENCE in job.name
        made[job.name] = [finished(job.name, 0.8 if peace else 0.2 if plain else under_attack)]
    return made


@pytest.mark.parametrize("name", ["hostile", "hostile-lenet"])
def test_every_job_is_a_config(name: str) -> None:
    found = hostile.chosen(name, quick=False)
    jobs = hostile.jobs_of(found, seed=1)

    suite = found["suite"]
    alone = len(suite["hostile"])
    assert len(jobs) == len(suite["views"]) * (len(found["choices"]) * (1 + 5 * len(suite["hostile"])) + alone)
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        assert config_from_dict(job.config, where=job.name).simulate.hostile <= 4


@pytest.mark.parametrize(("under_attack", "holds"), [(0.78, True), (0.7, False)])
def test_a_robust_choice_must_not_lose_more_than_three_points(under_attack: float, holds: bool) -> None:
    checks = hostile.checks(FOUND, runs(under_attack))

    assert [each["holds"] for each in checks] == [holds] * 10 + [True] * 3
    assert checks[0]["value"] == pytest.approx(80 - 100 * under_attack)


def test_honest_devices_alone_are_counted() -> None:
    assert hostile.honest_accuracy(finished("x", 0.5), 1) == pytest.approx(50)
    assert hostile.honest_accuracy(finished("x", 0.5), 0) == pytest.approx(45)


def test_a_run_that_was_brought_to_an_end_counts_as_nothing() -> None:
    assert hostile.honest_accuracy(Finished("x", 1, [], {}, []), 1) == 0


def test_a_run_that_was_brought_to_an_end_is_called_so_and_fails_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    made = runs(0.78)
    made["outliers alike sign-flip 4"] = [Finished("outliers alike sign-flip 4", 1, [], {}, [])]
    monkeypatch.setattr(hostile, "run_jobs", lambda jobs: [run[0] for run in made.values()])

    found = hostile.run(Namespace(quick=True, seeds=1, suite="hostile"))

    rows = found["tables"]["alike data, sign-flip: accuracy in percent of honest devices"]
    assert {row["choice"]: row["4"] for row in rows}["outliers"] == "ended"
    assert [one["holds"] for one in found["checks"] if "to an end" in one["name"]] == [False]


def test_a_job_runs_and_says_what_a_stamp_does() -> None:
    job = next(job for job in hostile.jobs_of(FOUND, seed=1) if job.name == "outliers skewed back-door 2")
    config: Any = {name: dict(section) for name, section in job.config.items()}
    config["run"]["rounds"] = 1
    config["model"]["model"] = "cnn-small"
    config["simulate"] |= {"dataset": "digits", "rows": 200}
    done = run_job(type(job)(job.name, 1, config, watch=job.watch))

    assert 0 <= done.seen["back door"] <= 1
    assert np.isfinite(hostile.honest_accuracy(done, 1))


def test_tables_have_a_row_for_every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "run_jobs", lambda jobs: [run[0] for run in runs(0.78).values()])

    found = hostile.run(Namespace(quick=True, seeds=1, suite="hostile"))

    assert len(found["tables"]) == 16
    assert all(len(rows) == len(FOUND["choices"]) for rows in found["tables"].values())


def test_rows_that_go_with_the_liars_are_not_counted_against_a_rule() -> None:
    made = runs(0.7)
    for n in FOUND["suite"]["hostile"]:
        made[f"plain skewed absence {n}"] = [finished("absence", 0.72)]

    checks = hostile.checks(FOUND, made)

    assert [each["holds"] for each in checks] == [False] * 5 + [True] * 8
    assert checks[-1]["value"] == pytest.approx(10)
