"""The suite privacy: its file, its jobs, its attacks in small, and checks that can fail."""

from typing import Any

import numpy as np
import pytest

from fedwright.benchmarks.harness.suite import Finished, read_suite
from fedwright.benchmarks.suites import privacy_attacks, privacy_noise, privacy_steps, privacy_sums
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.simulation import datasets
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation

FOUND = read_suite("privacy", quick=True)


def test_every_job_is_a_config_and_has_the_noise_that_the_tables_name() -> None:
    jobs = {job.name: config_from_dict(job.config, where=job.name).privacy for job in privacy_noise.jobs_of(FOUND, 1)}

    assert jobs["plain"].kind == "none"
    assert jobs["example 1.0"].noise_multiplier == 1.0
    assert jobs["central 8.0"].epsilon == 8.0


@pytest.mark.parametrize(("hidden", "holds"), [(0.75, True), (0.5, False)])
def test_the_check_on_accuracy_can_fail(hidden: float, holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def done(jobs: list[Any]) -> list[Finished]:
        accuracy = {job.name: 0.8 if job.name == "plain" else hidden for job in jobs}
        records = {"d": DeviceRecord("d", samples=200)}
        seen = {name: DeviceAccuracy("d", round(100 * share), 100, 0.0) for name, share in accuracy.items()}
        return [Finished(name, 1, [FleetEvaluation(1, "test", (one,))], records, []) for name, one in seen.items()]

    monkeypatch.setattr(privacy_noise, "run_jobs", done)
    tables, checks = privacy_noise.accuracy_tables(FOUND, [1])

    assert checks[0]["holds"] is holds
    assert [row["epsilon"] for row in tables["each sample hidden: accuracy in percent"][1:]] == sorted(
        (row["epsilon"] for row in tables["each sample hidden: accuracy in percent"][1:]), reverse=True
    )


def test_inversion_reads_a_sample_off_a_plain_step_and_not_off_a_private_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Images:
        """Random images."""

        x_train = np.random.default_rng(1).random((200, 1, 28, 28), np.float32)
        y_train = np.arange(200) % 10

    monkeypatch.setattr(datasets, "load", lambda name, limit: Images)

    assert privacy_attacks.inversion(1, None) > 0.99
    assert privacy_attacks.inversion(1, 4.0) < 0.3


def test_a_sum_gives_samples_away_and_neither_a_masked_part_nor_a_noisy_sum_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Images:
        """Random images."""

        x_train = np.random.default_rng(1).random((200, 1, 28, 28), np.float32)
        y_train = np.arange(200) % 10

    monkeypatch.setattr(datasets, "load", lambda name, limit: Images)

    assert privacy_sums.alike(1, "open") > 0.9
    assert privacy_sums.alike(1, "sum") > 0.5
    assert privacy_sums.alike(1, "masked") < privacy_sums.MOST_ALIKE
    assert privacy_sums.alike(1, "sum", 1.0) < privacy_sums.MOST_ALIKE


def test_no_attack_does_better_than_the_accountant_allows() -> None:
    # Many small steps are nearly one Gaussian mechanism of μ, whose area is Φ(μ / sqrt 2): 0.570 is μ = 0.25.
    assert privacy_attacks.most_area(16.0) == pytest.approx(0.570, abs=0.005)
    assert 0.57 < privacy_attacks.most_area(8.0) < privacy_attacks.most_area(4.0) < 0.8
    assert privacy_attacks.most_area(None) == 1.0


def test_a_step_is_measured_in_all_four_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_steps, "STEPS", 2)
    tables, checks = privacy_steps.step_tables(["mlp"])

    (row,) = next(iter(tables.values()))
    assert min(row["plain ms"], row["private ms"], row["torch ms"], row["Opacus ms"]) > 0
    assert len(checks) == 2
