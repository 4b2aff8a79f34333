"""The suites of methods whose server writes models: valid configs, margins as measured, costs that are counted."""

import pytest

from fedwright.benchmarks.harness.suite import Finished, merged, read_suite
from fedwright.benchmarks.suites import framp_fashion, hypernet
from fedwright.server_runtime.config import config_from_dict
from fedwright.simulation.simulate import DeviceAccuracy, FleetEvaluation

# devices 0 to 3 are of four sizes, 4 and 5 never train
DEVICES = [f"d-{number}" for number in range(6)]


def finished(name: str, accuracies: list[float]) -> Finished:
    """A job measured once."""
    own = tuple(DeviceAccuracy(d, round(100 * a), 100, 1.0) for d, a in zip(DEVICES, accuracies, strict=True))
    return Finished(name, 1, [FleetEvaluation(1, "test", own)], {}, [])


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", ["framp-fashion", "hyperflora-fashion"])
def test_suite_files_hold_valid_configs(name: str, quick: bool) -> None:
    found = read_suite(name, quick=quick)
    for label, params in found["params"].items():
        model = found["models"].get(label, found["config"]["model"]["model"])
        own = {"method": {"name": label, **params}, "model": {"model": model}}
        config = config_from_dict(merged(found["config"], own), where=name)
        assert config.method.name == params.get("name", label)


def test_margins_are_those_of_the_smallest_devices() -> None:
    runs = {
        "framp": [finished("framp", [0.9, 0.9, 0.9, 0.75, 0.5, 0.5])],
        "heterofl": [finished("heterofl", [0.9, 0.9, 0.9, 0.65, 0.5, 0.5])],
        "fedrolex": [finished("fedrolex", [0.9, 0.9, 0.9, 0.60, 0.5, 0.5])],
        "fiarse": [finished("fiarse", [0.9, 0.9, 0.9, 0.76, 0.5, 0.5])],
    }
    found = framp_fashion.checks(runs, 4, unseen=4)
    assert [entry["value"] for entry in found] == pytest.approx([10, 15, -1])
    assert [entry["holds"] for entry in found] == [True, False, False]


def test_writing_costs_are_counted() -> None:
    cost = hypernet.round_cost(2, 5)
    assert 0 < cost["products CPU ms"] < cost["round CPU ms"]
    assert cost["products wall ms"] > 0
    assert cost["round wall ms"] > 0
    assert 0 < hypernet.adapters_cost(50, 1).cpu_s < cost["round CPU ms"]
