"""What comparisons rest on: rows to choose by, both moments, three views of budgets, and what devices really got."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.benchmarks.harness import search as searches
from fedwright.benchmarks.harness.budget_views import budget_views, bytes_by_round
from fedwright.benchmarks.harness.real_fleet import link_overhead
from fedwright.benchmarks.harness.search import Trial, trials_of
from fedwright.benchmarks.harness.suite import Finished, Job, paired_row, run_job, standard_error
from fedwright.benchmarks.suites.methods import over_budget
from fedwright.device_runtime.train.loop import evaluate
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.methods.shared.submodels import count_params
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation

CONFIG: dict[str, Any] = {
    "run": {"rounds": 2},
    "model": {"model": "cnn-small"},
    "method": {"name": "fedavg"},
    "train": {"batch": 16, "epochs": 2, "learning_rate": 0.1},
    "simulate": {"devices": 4, "rows": 400, "partition": "few-classes", "val_ratio": 0.1, "evaluate_every": 1},
}


def with_method(**params: Any) -> dict[str, Any]:
    return {**CONFIG, "method": params}


def test_rows_to_choose_by_are_no_rows_to_test_on_and_leave_those_as_they_were() -> None:
    plain = deal(SimulateSection(rows=300, devices=3), seed=1)
    split = deal(SimulateSection(rows=300, devices=3, val_ratio=0.25), seed=1)

    for device, share in split.shares.items():
        assert np.array_equal(share.test, plain.shares[device].test)
        assert set(share.train) | set(share.val) == set(plain.shares[device].train)
        assert not set(share.train) & set(share.val)
        assert len(share.val) == int(0.25 * len(share.rows))


def test_models_are_measured_before_and_after_own_training_at_the_end() -> None:
    done = run_job(Job("a", 1, CONFIG, parts=("val", "test", "test after")))

    assert [(entry.round, entry.part) for entry in done.evaluations] == [
        (1, "val"), (1, "test"), (2, "val"), (2, "test"), (2, "test after"),
    ]  # fmt: skip
    # Two classes per device: a model of its own is much better than the common one.
    assert done.curve("test after", "mean")[-1] > done.curve("test", "mean")[-1] + 0.1


def test_a_sparse_model_stays_sparse_in_own_training(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros: list[int] = []

    def look(trainer: Any, data: Any, **options: Any) -> Any:
        zeros.append(sum(int((v == 0).sum()) for v in trainer.weights().values() if v.ndim > 1))
        return evaluate(trainer, data, **options)

    monkeypatch.setattr("fedwright.simulation.worker.evaluate", look)
    config = {**with_method(name="fiarse", sizes=[0.25]), "run": {"rounds": 1}}
    run_job(Job("a", 1, config, parts=("test", "test after")))

    before, after = zeros[:4], zeros[4:]
    assert min(before) > 1000
    assert min(after) >= min(before)


def test_entries_are_counted_in_what_devices_fetch() -> None:
    whole = count_params(ModelSpec("cnn-small", (1, 8, 8), 10))

    dense = run_job(Job("a", 1, CONFIG)).seen["entries"]
    sparse = run_job(Job("a", 1, with_method(name="fiarse", sizes=[0.25]))).seen["entries"]

    assert set(dense.values()) == {whole}
    assert all(0.24 * whole < count < 0.27 * whole for count in sparse.values())


def test_a_device_that_gets_more_than_its_share_is_over_budget() -> None:
    done = Finished("a", 1, [], {}, [], seen={"entries": {"device-0": 50, "device-1": 50}})

    assert over_budget(done, [1.0, 0.25], 100, together=True) == pytest.approx(100 / (1.05 * 125))
    assert over_budget(done, [1.0, 0.25], 100, together=False) == pytest.approx(50 / (1.05 * 25))


def finished(accuracies: list[float], *, bytes_each: float, cpu_s: float, once: int = 0) -> Finished:
    """Of one device that is right in so many of 100 cases after rounds 1, 2, …"""
    measured = [
        FleetEvaluation(number, "test before", (DeviceAccuracy("d", round(100 * value), 100, 1.0),))
        for number, value in enumerate(accuracies, start=1)
    ]
    total = int(bytes_each * len(accuracies)) + once
    record = DeviceRecord("d", rounds=len(accuracies), bytes_up=total, cpu_s=cpu_s)
    metrics = [{"bytes_down": bytes_each / 2, "bytes_up": bytes_each / 2} for _ in accuracies]
    return Finished("a", 1, measured, {"d": record}, metrics)


def test_three_views_stop_a_run_where_the_base_has_spent_as_much() -> None:
    base = finished([0.1, 0.2, 0.3, 0.4], bytes_each=100, cpu_s=4.0)
    # Twice the bytes and a fixed 100: 300, 500, 700 and 900 of the base's 400; half the seconds.
    other = finished([0.5, 0.6, 0.7, 0.8], bytes_each=200, cpu_s=2.0, once=100)

    rows = budget_views({"base": [base], "other": [other]}, "base")

    assert bytes_by_round(other) == [300, 500, 700, 900]
    assert [rows[0][view] for view in ("equal parameters", "equal bytes", "equal device s")] == [40, 40, 40]
    assert [rows[1][view] for view in ("equal parameters", "equal bytes", "equal device s")] == [80, 50, 80]
    slow = finished([0.9], bytes_each=1000, cpu_s=1.0)
    assert budget_views({"base": [base], "slow": [slow]}, "base")[1]["equal bytes"] is None


def test_paired_rows_have_a_standard_error_and_a_sign_test() -> None:
    row = paired_row([1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.0, 0.0, 0.0, 0.0])

    # Differences 1 to 5: deviation sqrt(2.5), so an error of sqrt(2.5 / 5); five wins of five: 2 / 2^5.
    assert row["error"] == pytest.approx(0.5**0.5)
    assert row["p (sign)"] == pytest.approx(1 / 16)
    assert standard_error([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(0.5**0.5)
    assert standard_error([1.0]) is None


SEARCH = {"seeds": 1, "trials": 2, "rates": [0.1, 0.0001], "own": {"fedprox": {"mu": [0.01, 1.0]}}}


def test_a_search_tries_as_much_for_all_and_never_looks_at_test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Job] = []

    def here(jobs: list[Job]) -> list[Finished]:
        asked.extend(jobs)
        return [run_job(job) for job in jobs]

    monkeypatch.setattr(searches, "run_jobs", here)

    jobs = [Job(name, 1, with_method(name=name), parts=("test",)) for name in ("fedavg", "fedprox")]

    found = searches.search({"search": SEARCH, "whole": {"seeds": 3, "rows": 500}}, jobs)

    assert {job.parts for job in asked} == {("val",)}
    assert {job.seed for job in asked} == {searches.FIRST_SEED}
    assert {job.config["simulate"]["skip_rows"] for job in asked} == {500}
    assert [one["method"] for one in found["tried"]] == ["fedavg", "fedavg", "fedprox", "fedprox"]
    assert found["chosen"]["fedavg"]["train"] == {"learning_rate": 0.1}
    assert found["chosen"]["fedprox"]["params"] == {"mu": 0.01}


def test_a_search_says_whose_best_rate_has_none_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = {"fedavg": [10, 90, 20], "fedprox": [10, 20, 90]}

    def scored(jobs: list[Job]) -> list[Finished]:
        made = []
        for job in jobs:
            method, number = job.name.split()
            own = DeviceAccuracy("d", right[method][int(number) % 3], 100, 1.0)
            made.append(Finished(job.name, job.seed, [FleetEvaluation(1, "val", (own,))], {}, []))
        return made

    monkeypatch.setattr(searches, "run_jobs", scored)
    jobs = [Job(name, 1, with_method(name=name)) for name in right]
    tries = {"seeds": 1, "trials": 3, "rates": [0.01, 0.1, 1.0]}

    found = searches.search({"search": tries, "whole": {"seeds": 3}}, jobs)

    assert found["best at an edge"] == ["fedprox"]


def test_rows_and_seeds_that_are_reported_are_not_searched() -> None:
    reported = deal(SimulateSection(rows=300, devices=3), seed=1)
    searched = deal(SimulateSection(rows=300, skip_rows=300, devices=3, val_ratio=0.2), seed=101)

    assert not {row.tobytes() for row in reported.x} & {row.tobytes() for row in searched.x}
    with pytest.raises(ConfigError, match="are more than the 1438 examples"):
        deal(SimulateSection(rows=300, skip_rows=1400, devices=3), seed=1)
    with pytest.raises(ConfigError, match="searches begin at 101"):
        searches.search_seeds({"search": SEARCH, "whole": {"seeds": 101}})


def test_uneven_efforts_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 trials, but fedprox has 2 settings"):
        trials_of({**SEARCH, "trials": 3}, "fedprox")


def test_a_link_carries_what_a_simulation_counts_and_a_little_more() -> None:
    config = {**CONFIG, "simulate": {**CONFIG["simulate"], "devices": 2, "rows": 80}, "fleet": {"devices": 2}}
    with Broker() as broker:
        found = link_overhead(config, broker.url)

    assert 0 < found["beyond"] < 16_000
    assert found["measured"] == pytest.approx(found["counted"] + found["beyond"])


def test_a_committed_search_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "search").mkdir()
    text = '{"chosen": {"fedavg": {"train": {"learning_rate": 0.2}, "params": {}, "val": 1.0}}}'
    (tmp_path / "search/methods.json").write_text(text)
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)

    assert searches.chosen("methods") == {"fedavg": Trial({"learning_rate": 0.2}, {})}
    assert searches.chosen("other") == {}
    first, second = searches.tuned("methods", [Job("fedavg", 1, CONFIG), Job("fedprox", 1, CONFIG)])
    assert (first.config["train"]["learning_rate"], second.config["train"]["learning_rate"]) == (0.2, 0.1)
