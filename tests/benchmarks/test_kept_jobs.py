"""A suite that was interrupted goes on: finished jobs are not run again, and the table is the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedwright
from fedwright.benchmarks.harness import kept_jobs
from fedwright.benchmarks.harness import suite as suites
from fedwright.benchmarks.harness.kept_jobs import keeping, place_of
from fedwright.benchmarks.harness.suite import Job, merged, run_kept
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds import events
from fedwright.simulation.simulate import Simulated, simulate

CONFIG: Mapping[str, Any] = {
    "run": {"rounds": 1},
    "method": {"name": "fedavg"},
    "model": {"model": "mlp"},
    "simulate": {"devices": 3, "rows": 200, "partition": "iid"},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_finished_job_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("a", 1, CONFIG)

    class Interrupted(Exception):
        pass

    def interrupt() -> None:
        with keeping("tried"):
            place = place_of(job)
            assert place is not None
            run_kept(job, place)
            raise Interrupted

    with pytest.raises(Interrupted):
        interrupt()
    fresh = suites.run_job(job)
    monkeypatch.setattr(suites, "run_job", lambda *job: pytest.fail("the job was run again"))
    with keeping("tried"):
        again = run_kept(job, place_of(job))
        assert again.evaluations == fresh.evaluations
        assert again.devices.keys() == fresh.devices.keys()


def test_what_a_whole_suite_kept_is_forgotten() -> None:
    job = Job("a", 1, CONFIG)
    with keeping("tried"):
        place = place_of(job)
        assert place is not None
        run_kept(job, place)
        assert place.exists()
    assert not place.exists()


def test_jobs_that_differ_have_different_places() -> None:
    job = Job("a", 1, CONFIG)
    others = [Job("a", 2, CONFIG), Job("a", 1, {**CONFIG, "run": {"rounds": 2}}), Job("a", 1, CONFIG, share=0.5)]
    with keeping("tried"):
        assert place_of(job) == place_of(Job("a", 1, dict(CONFIG)))
        assert len({place_of(one) for one in [job, *others]}) == 4


def test_outside_of_a_suite_nothing_is_kept() -> None:
    assert place_of(Job("a", 1, CONFIG)) is None


def test_a_job_goes_on_with_the_round_in_which_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("three", 1, merged(CONFIG, {"run": {"rounds": 3}, "simulate": {"evaluate_every": 1}}))
    whole = suites.run_job(job)
    place = tmp_path / "kept.json"
    rounds = []

    def watched(config: RunConfig, text: str, *, observer: events.Observer, **options: Any) -> Simulated:
        def observe(event: Any) -> None:
            observer(event)
            if isinstance(event, events.RoundClosed):
                rounds.append(event.round)
                if len(rounds) == 2:
                    raise KeyboardInterrupt

        return simulate(config, text, observer=observe, **options)

    monkeypatch.setattr(suites, "simulate", watched)
    with pytest.raises(KeyboardInterrupt):
        run_kept(job, place)
    again = run_kept(job, place)

    assert rounds == [1, 2, 3]
    assert [m["loss"] for m in again.metrics] == [m["loss"] for m in whole.metrics]
    assert again.evaluations == whole.evaluations
    # Else the server's time per round would be that of some rounds less the devices' time in all of them.
    assert len(again.round_s) == 3
    assert list(tmp_path.iterdir()) == [place]


def test_the_program_is_all_of_its_sources() -> None:
    names = {str(path.relative_to(Path(fedwright.__file__).parent)) for path in kept_jobs.program_files()}

    assert {"cli/bench.py", "server_runtime/methods/baselines/fedavg.py", "device_runtime/train/loop.py"} <= names
