"""Speeds of devices: from their profile, then from what their tasks really took."""

from dataclasses import replace

import pytest
from msgspec import structs

from fedwright.protocol.messages import Stats
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import WORK_BATCHES, Profile
from fedwright.server_runtime.fleet.speeds import Speeds
from helpers.fleet import report
from helpers.present import present
from helpers.tiny_artifact import make_artifact

ONE_CALL = (1.0, *[0.0] * (len(FEATURES) - 1))
MANIFEST = structs.replace(make_artifact().manifest, work={"Add": [v for _ in WORK_BATCHES for v in ONE_CALL]})
# One call of 10 ms is a step.
PROFILE = Profile("board", "runtime", 1, kinds={"Add": [0.01, *[0.0] * (len(FEATURES) - 1)]}, spread=0.2)


def stats(train_s: float, steps: int) -> Stats:
    return Stats(samples=1, steps=steps, train_s=train_s, cpu_s=train_s, peak_rss_bytes=1)


@pytest.fixture
def speeds() -> Speeds:
    made = Speeds()
    made.hear("pi", report(profile=PROFILE.to_json()))
    return made


def test_a_profile_predicts_until_real_times_refine_it(speeds: Speeds) -> None:
    assert present(speeds.predict("pi", MANIFEST, batch=8)).step_s == pytest.approx(0.01)

    # Five steps in 0.1 s: twice as slow as it said.
    speeds.take("pi", MANIFEST, stats(0.1, 5), batch=8)

    found = speeds.predict("pi", MANIFEST, batch=8)
    assert [present(found).step_s, present(found).high_s] == pytest.approx([0.02, 0.024])


def test_the_same_profile_heard_again_forgets_nothing(speeds: Speeds) -> None:
    speeds.take("pi", MANIFEST, stats(0.1, 5), batch=8)
    speeds.hear("pi", report(profile=PROFILE.to_json()))

    assert present(speeds.predict("pi", MANIFEST, batch=8)).step_s == pytest.approx(0.02)


def test_a_new_profile_answers_a_question_once(speeds: Speeds) -> None:
    newer = [replace(PROFILE, spread=spread).to_json() for spread in (0.3, 0.4, 0.5)]
    unasked = speeds.hear("pi", report(profile=newer[0]))
    speeds.ask("pi")

    assert not unasked
    assert [speeds.hear("pi", report(profile=newer[place])) for place in (0, 1, 2)] == [False, True, False]


def test_a_device_without_a_readable_profile_has_no_prediction(speeds: Speeds) -> None:
    speeds.hear("old", report())
    speeds.hear("odd", report(profile=b"nonsense"))

    assert speeds.predict("old", MANIFEST, batch=8) is None
    assert speeds.predict("odd", MANIFEST, batch=8) is None


def test_a_device_without_a_profile_is_known_by_its_first_task(speeds: Speeds) -> None:
    speeds.take("old", MANIFEST, stats(0.1, 5), batch=8)

    assert present(speeds.predict("old", MANIFEST, batch=8)).step_s == pytest.approx(0.02)
    # Another graph with three times the calls takes three times as long.
    thrice = structs.replace(MANIFEST, work={"Mul": [3 * value for value in MANIFEST.work["Add"]]})
    assert present(speeds.predict("old", thrice, batch=8)).step_s == pytest.approx(0.06)


def test_the_link_of_a_profile_is_known(speeds: Speeds) -> None:
    measured = replace(PROFILE, link={"connect_s": 0.1, "bytes_per_s": 5e5})
    speeds.hear("far", report(profile=measured.to_json()))

    assert speeds.bytes_per_s("far") == 5e5
    assert speeds.bytes_per_s("pi") is None


def test_a_task_without_steps_teaches_nothing(speeds: Speeds) -> None:
    speeds.take("pi", MANIFEST, stats(1.0, 0), batch=8)

    assert present(speeds.predict("pi", MANIFEST, batch=8)).step_s == pytest.approx(0.01)
