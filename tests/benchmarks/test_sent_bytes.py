"""The suite bytes: what a form takes beside plain float32, and what is promised of it."""

import pytest

from fedwright.benchmarks.harness.suite import Finished, read_suite
from fedwright.benchmarks.suites import sent_bytes
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation

FOUND = read_suite("bytes", quick=True)


def finished(correct: int, *, up: int, down: int) -> Finished:
    """A run of ten rounds of a model of 1,000 parameters, which take 80,000 bytes as plain float32."""
    entries = [FleetEvaluation(round_, "test", (DeviceAccuracy("d", correct, 1000, 1.0),)) for round_ in (5, 10)]
    return Finished("x", 1, entries, {"d": DeviceRecord("d", bytes_up=up, bytes_down=down)}, [], {"parameters": 1000})


def runs(correct: int, *, up: int, down: int) -> dict[tuple[str, str], list[Finished]]:
    """All forms on all data sets: float32, and others that are alike."""
    plain = finished(900, up=30_000, down=50_000)
    return {
        (data, form): [plain if form == sent_bytes.PLAIN else finished(correct, up=up, down=down)]
        for data in FOUND["data"]
        for form in FOUND["forms"]
    }


def test_a_form_is_weighed_against_plain_float32() -> None:
    own = finished(897, up=2_000, down=6_000)

    row = sent_bytes.row_of("small", [own], [finished(900, up=30_000, down=50_000)], 10)

    assert row["of plain float32"] == pytest.approx(8_000 / 80_000)
    assert row["less float32's"] == pytest.approx(-0.3)
    assert (row["up kB"], row["down kB"]) == (2.0, 6.0)


@pytest.mark.parametrize(
    ("correct", "down", "held"),
    [(899, 5_000, [True, True]), (899, 7_000, [False, True]), (890, 5_000, [True, False])],
    ids=["both", "too many bytes", "too little learnt"],
)
def test_what_is_promised_can_fail(correct: int, down: int, held: list[bool]) -> None:
    found = sent_bytes.checks(runs(correct, up=2_000, down=down), FOUND, 10)

    assert [check["holds"] for check in found] == held * len(FOUND["data"])


def test_curves_show_what_bytes_pay_for() -> None:
    job = finished(900, up=20_000, down=60_000)

    assert sent_bytes.at_bytes([job], 39_999, 10) is None
    assert sent_bytes.at_bytes([job], 40_000, 10) == 90.0


def test_every_form_is_a_config() -> None:
    jobs = sent_bytes.jobs_of(FOUND, [1])

    assert len(jobs) == len(FOUND["data"]) * len(FOUND["forms"])
    for job in jobs:
        config_from_dict({**job.config, "run": {**job.config["run"], "name": "x"}}, where=job.name)
    assert FOUND["promised"]["form"] in FOUND["forms"]
