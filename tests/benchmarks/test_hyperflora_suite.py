"""The suite hyperflora-fashion: who begins with the base, what is compared with what, what is counted."""

from pathlib import Path

import pytest

from fedwright.benchmarks.harness.suite import Finished, mean, read_suite, run_job
from fedwright.benchmarks.suites import hyperflora_fashion as suite
from fedwright.benchmarks.suites.hyperflora_fashion import ResultRow
from fedwright.protocol import tensors
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation
from fedwright.simulation.worker import Part

# Four devices train, two never do.
SIZES = {"devices": 6, "bystanders": 2}
GROUPS = suite.groups_of(SIZES)
PARTS: tuple[Part, Part] = ("val", "test")
LABELS = {"pretrain": 0.50, "fedavg-masked": 0.70, "hyperflora": 0.75, "pfedhn": 0.65}


def finished(name: str, accuracy: float, *, rounds: tuple[int, ...] = (10, 20), up: int = 10**6) -> Finished:
    """A job in which bystanders reach an accuracy, and participants a tenth less; the first measurement is half."""
    entries = []
    for number in rounds:
        share = 1.0 if number == rounds[-1] else 0.5
        values = [share * (accuracy - 0.1)] * 4 + [share * accuracy] * 2
        own = tuple(DeviceAccuracy(f"d-{n}", round(1000 * value), 1000, 1.0) for n, value in enumerate(values))
        entries += [FleetEvaluation(number, "val", own), FleetEvaluation(number, "test", own)]
    records = {f"d-{n}": DeviceRecord(f"d-{n}", bytes_up=up) for n in range(4)}
    return Finished(name, 1, entries, records, [{"adapters": 12.0}, {"adapters": 9.0}], round_s=[1.0, 1.0])


def rows_of() -> dict[str, ResultRow]:
    runs = {label: [finished(label, value)] for label, value in LABELS.items()}
    return suite.accounted(runs, {"hyperflora"})


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", ["hyperflora-fashion", "hyperflora-vit"])
def test_every_row_is_a_valid_config_that_begins_where_it_should(name: str, quick: bool) -> None:
    found = read_suite(name, quick=quick)
    sizes = found["suite"]
    for label in found["params"]:
        job = suite._job(found, label, 3, Path("base.safetensors") if label in found["models"] else None)
        config = config_from_dict(job.config, where=label)
        assert ("base" in job.config["method"]) == (label in found["models"])
        assert config.run.rounds in (
            sizes["pretrain_rounds"],
            sizes["adapter_rounds"],
            sizes["pretrain_rounds"] + sizes["adapter_rounds"],
        )
    assert set(sizes["pretrained"]) <= found["params"].keys()
    compared = {label for one, other, _ in suite.COMPARED for label in (one, other)}
    assert compared - {suite.EQUAL} <= found["params"].keys()


def test_adapters_pay_for_the_base_too() -> None:
    rows = rows_of()
    # four devices with one MB each; HyperFLoRA's stand on the base that cost as much
    assert rows["pretrain"].megabytes == 4
    assert rows["hyperflora"].megabytes + rows["hyperflora"].megabytes_before == 8
    assert [point["MB"] for point in suite.curve(rows["hyperflora"], GROUPS)] == [6, 8]
    assert [point["round"] for point in suite.curve(rows["hyperflora"], GROUPS)] == [30, 40]


def test_pfedhn_at_equal_bytes_stops_where_they_are_spent() -> None:
    runs = {label: [finished(label, value)] for label, value in LABELS.items()}
    runs["pfedhn"] = [finished("pfedhn", 0.65, rounds=(10, 20, 30, 40), up=4 * 10**6)]
    row = suite.accounted(runs, {"hyperflora"})[suite.EQUAL]
    # 16 MB for 40 rounds, so 8 MB are 20 of them
    assert (row.last, row.megabytes) == (20, 8)
    assert set(suite.accuracies(row.own[0], GROUPS, "bystanders", row.last).values()) == {32.5}


def test_differences_are_paired_by_device_and_have_a_sign_when_they_are_large() -> None:
    ours, theirs = finished("hyperflora", 0.75), finished("pretrain", 0.5)
    noisy = tuple(DeviceAccuracy(f"d-{n}", value, 1000, 1.0) for n, value in enumerate([0, 1000, 0, 1000, 510, 500]))
    rows = {
        "hyperflora": suite.ResultRow([ours], 1.0),
        "pretrain": suite.ResultRow(
            [Finished("pretrain", 1, [*theirs.on("val"), FleetEvaluation(20, "test", noisy)], {}, [])], 1.0
        ),
    }
    paper = {"LeNet": {"hyperflora": [78.3, 77.86], "pretrain": [70.75, float("nan")]}}
    on = [suite._difference(rows, GROUPS, paper, "hyperflora", "pretrain", group) for group in GROUPS]
    # Validation rows choose round 20, in which bystanders have 75 and 51 or 50.
    assert on[0]["points"] == pytest.approx(24.5)
    assert (on[0]["sign"], on[1]["sign"]) == ("+", "0")
    assert on[0]["paper LeNet"] == pytest.approx(7.55)
    assert on[1]["paper LeNet"] is None


def test_traffic_is_the_papers_formula_and_as_counted() -> None:
    jobs = {"hyperflora": [finished("hyperflora", 0.7)], "pretrain": [finished("pretrain", 0.5, up=10**7)]}
    found = suite.traffic(read_suite("hyperflora-fashion", quick=True), jobs)
    # 28×28 images make fc1 read 16·4·4 = 256: adapters 256 + 120 + 220 + 110
    assert found["by the formula"] == 2 * 6 * 10 + (12 + 4 * 3) * 706
    assert found["most counted"] == 2 * 6 * 10 + 2 * 12 * 706 == found["by the formula"]
    assert found["mean counted"] == 2 * 6 * 10 + 2 * 10.5 * 706
    # Four devices sent a MB each in two rounds; by the formula six adapters, and two more for each of three pairs.
    assert found["bytes up measured"] == 2 * 10**6
    assert found["bytes up by the formula"] == 4 * 706 * (6 + 2 * 3)
    assert found["fedavg's bytes up measured"] == 2 * 10**7


def test_checks_say_what_was_missed() -> None:
    wire = {
        "by the formula": 100,
        "most counted": 90.0,
        "bytes up measured": 200.0,
        "bytes up by the formula": 100,
        "fedavg's bytes up measured": 800.0,
    }
    paired = [
        {"difference": f"hyperflora - {other}", "on": "bystanders", "points": points}
        for other, points in (("pretrain", 12.0), (suite.EQUAL, -3.0), ("fedavg-masked", -2.0))
    ]
    found = suite.checks(paired, wire)
    assert [entry["holds"] for entry in found] == [True, False, False, False, True, True]
    assert [entry["target"] for entry in found[4:]] == ["reported", "reported"]


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    rows = rows_of()
    suite.draw({label: suite.curve(row, GROUPS) for label, row in rows.items()}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_base_that_is_left_is_what_adapters_begin_with(tmp_path: Path) -> None:
    found = read_suite("hyperflora-fashion", quick=True)
    found["suite"] |= {
        "pretrain_rounds": 1,
        "adapter_rounds": 1,
        "rows": 100,
        "devices": 4,
        "bystanders": 1,
        "per_round": 2,
    }
    found["config"]["simulate"] |= {"dataset": "digits", "partition": "iid", "evaluate_every": 1}
    found["config"]["model"] |= {"model": "cnn-small"}
    found["models"] = {"hyperflora": "cnn-lora"}
    left = run_job(suite._job(found, "pretrain", 1))
    base = suite._base(left, suite.groups_of(found["suite"])["participants"], tmp_path)
    done = run_job(suite._job(found, "hyperflora", 1, base))
    assert "head.weight" in tensors.load(base)
    assert [(entry.round, entry.part) for entry in done.evaluations] == [(1, "val"), (1, "test")]
    # second factors begin at zero and one round moves them little: accuracies begin where the base's ended
    ended, began = (mean(device.accuracy for device in job.evaluations[-1].devices) for job in (left, done))
    assert began == pytest.approx(ended, abs=0.1)


def test_the_round_is_chosen_on_validation_rows_of_participants_alone() -> None:
    def entry(number: int, part: Part, values: list[int]) -> FleetEvaluation:
        own = tuple(DeviceAccuracy(f"d-{n}", value, 100, 1.0) for n, value in enumerate(values))
        return FleetEvaluation(number, part, own)

    rows = {
        1: ([50, 50, 50, 50, 99, 99], [10, 10, 10, 10, 11, 11]),
        2: ([60, 60, 60, 60, 0, 0], [20, 20, 20, 20, 21, 21]),
        3: ([55, 55, 55, 55, 99, 99], [99, 99, 99, 99, 99, 99]),
    }
    entries = [entry(number, part, own[place]) for number, own in rows.items() for place, part in enumerate(PARTS)]
    job = Finished("x", 1, entries, {}, [])
    assert suite.chosen_round(job, GROUPS["participants"]) == 2
    assert set(suite.accuracies(job, GROUPS, "bystanders").values()) == {21}
    assert set(suite.accuracies(job, GROUPS, "bystanders", last=1).values()) == {11}


def test_runs_that_did_best_at_their_end_are_counted() -> None:
    rising = finished("x", 0.8)
    fallen = Finished("y", 1, [*rising.evaluations, FleetEvaluation(30, "val", rising.evaluations[0].devices)], {}, [])

    row = suite.at_the_end({"x": [rising], "y": [fallen]}, GROUPS)

    assert (row["value"], row["target"]) == (0.5, "reported")


@pytest.mark.parametrize("name", ["hyperflora-fashion", "hyperflora-vit"])
def test_searched_adapters_train_their_own_base(name: str) -> None:
    jobs = {job.name: job for job in suite.search_jobs(read_suite(name, quick=True))}
    assert "hyperflora, no pairs" not in jobs
    assert jobs["hyperflora"].config["method"]["pretrain_rounds"] > 0
    assert jobs["pretrain"].config["method"]["name"] == "fedavg"
