"""One list of classes for a fleet, and reports in its order."""

from typing import Any

import pytest
from msgspec import structs

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import DataSummary, Report
from fedwright.server_runtime.fleet.admission import report_problem
from fedwright.server_runtime.fleet.class_names import RunData, check_classes, fleet_names, largest_believed
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report
from helpers.present import present

RUN = ("ant", "cat", "dog", "fox")


def named(names: list[str] | None, counts: list[int] | None = None, **changes: Any) -> Report:
    classes = len(names) if names else 2
    return report(data=DataSummary(30, 6, [4], classes, class_counts=counts, class_names=names, **changes))


def test_the_list_is_the_sorted_union() -> None:
    reports = {"b": named(["cat", "fox"]), "a": named(["fox", "dog"])}
    assert fleet_names(None, reports) == ("cat", "dog", "fox")
    assert fleet_names(5, reports) == ("cat", "dog", "fox")
    assert fleet_names(("fox", "dog", "cat"), reports) == ("fox", "dog", "cat")
    assert fleet_names(None, {"a": named(None)}) == ()


@pytest.mark.parametrize(
    ("classes", "other", "message"),
    [
        pytest.param(None, named(None), "device b are numbers but those of device a have names; list them", id="mixed"),
        pytest.param(None, named([]), "device b keeps the names of its classes to itself; list", id="untold"),
        pytest.param(2, named(["gnu"]), "model.classes is 2 but the devices have 3 classes", id="too many"),
    ],
)
def test_devices_that_do_not_agree(classes: int | None, other: Report, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fleet_names(classes, {"a": named(["cat", "fox"]), "b": other})


def test_a_report_is_put_into_the_order_of_the_run() -> None:
    run = RunData(RUN, classes=4)
    read = run.read(named(["fox", "cat"], [7, 3]))
    assert (read.data.class_names, read.data.class_counts, read.data.classes) == (list(RUN), [0, 3, 0, 7], 4)
    assert run.read(read) is read


def test_plain_numbers_are_places_and_filled_up() -> None:
    run = RunData(RUN, listed=True, classes=4)
    read = run.read(named(None, [7, 3]))
    assert (read.data.class_names, read.data.class_counts, read.data.classes) == (None, [7, 3, 0, 0], 4)
    assert run.read(read) is read


@pytest.mark.parametrize(
    ("run", "given", "problem"),
    [
        pytest.param(RunData(RUN), named(["cat", "wolf"]), "the class 'wolf' is none of the run's", id="unknown"),
        pytest.param(RunData(RUN), named(None), "its classes are numbers but the run's have names", id="numbers"),
        pytest.param(RunData(), named(["cat", "dog"]), "have names but those of the run are numbers", id="names"),
        pytest.param(RunData(RUN), named(["cat", "dog"], [1]), "counts another number of them", id="counts"),
        pytest.param(RunData(RUN), named(["cat", "cat"], [1, 2]), "'cat' is there twice", id="twice"),
        pytest.param(
            RunData(input_dtype="int64"), named(None, input_dtype="float32"), "has fractions (float32)", id="fractions"
        ),
    ],
)
def test_reports_that_do_not_fit(run: RunData, given: Report, problem: str) -> None:
    spec = ModelSpec("mlp", (4,), 4)
    assert problem in present(report_problem(given, spec, run))
    assert run.read(given) is given


@pytest.mark.parametrize(
    ("run", "given"),
    [
        pytest.param(RunData(RUN, listed=True), named(None), id="numbers are places"),
        pytest.param(RunData(RUN), named([]), id="names not told"),
        pytest.param(RunData(input_dtype="int64"), named(None, input_dtype=""), id="an older agent"),
        pytest.param(RunData(input_dtype="int64"), named(None, input_dtype="uint16"), id="other integers"),
        pytest.param(RunData(input_dtype="float32"), named(None, input_dtype="int64"), id="integers for fractions"),
    ],
)
def test_reports_that_fit(run: RunData, given: Report) -> None:
    assert report_problem(given, ModelSpec("mlp", (4,), 4), run) is None


def test_whole_numbers_that_are_measured_are_described_as_such() -> None:
    given = named(None, [1, 2], input_dtype="int64", score_counts=[0, 2], descriptor=[1.0], number_descriptor=[2.0])
    read = RunData(input_dtype="float32").read(given)
    assert (read.data.score_counts, read.data.descriptor, read.data.number_descriptor) == (None, [2.0], None)
    assert RunData(input_dtype="float32").read(read) == read
    assert RunData(input_dtype="int64").read(given) is given
    old = structs.replace(given, data=structs.replace(given.data, input_dtype=""))
    assert RunData(input_dtype="float32").read(old) is old


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        pytest.param(1, "classes is 1 but must be at least 2", id="one"),
        pytest.param(("cat",), "number of classes is 1", id="one name"),
        pytest.param(("cat", "cat"), "'cat' is there twice", id="twice"),
        pytest.param(("cat", ""), "must have 1 to 200 letters", id="empty"),
    ],
)
def test_classes_of_a_config(classes: int | tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_classes(classes)
    check_classes(("cat", "dog"))


@pytest.mark.parametrize(
    ("counts", "believed"),
    [
        pytest.param([10, 10, 10, 1_000_000], 10, id="one liar"),
        pytest.param([10, 10, 10, 1000, 1000], 10, id="two of five"),
        pytest.param(list(range(1, 11)), 10, id="a label each"),
        pytest.param([2, 2, 10], 10, id="few labels"),
        pytest.param([100], 100, id="alone"),
        pytest.param([], 0, id="nobody"),
    ],
)
def test_the_number_of_classes_is_what_the_median_bears_out(counts: Any, believed: Any) -> None:
    assert largest_believed(counts) == believed


def test_the_names_of_a_device_that_claims_too_many_do_not_count() -> None:
    honest = {device: named(["cat", "fox"]) for device in "abc"}
    liar = named([f"class {number}" for number in range(100)])
    assert fleet_names(None, {**honest, "liar": liar}) == ("cat", "fox")


@pytest.mark.parametrize("odd", [named(None), named([]), named(["cat", "cat"])], ids=["numbers", "untold", "double"])
def test_one_device_that_does_not_name_as_the_others_do_does_not_end_the_run(odd: Any) -> None:
    assert fleet_names(None, {"a": named(["cat"]), "b": named(["fox"]), "odd": odd}) == ("cat", "fox")


def test_of_more_names_than_the_config_counts_those_stay_that_most_report() -> None:
    fleet = {"a": named(["cat", "fox"]), "b": named(["cat", "fox"]), "liar": named(["gnu", "fox"])}
    assert fleet_names(2, fleet) == ("cat", "fox")


def test_names_that_do_not_fit_into_a_message_are_no_use_even_if_all_report_them() -> None:
    many = named([f"{n:0199d}" for n in range(400)])
    with pytest.raises(ConfigError, match="device a: 400 class names of"):
        fleet_names(None, {"a": many, "b": many})
