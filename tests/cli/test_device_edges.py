"""`fedwright device run --edge`: from the words to the agent's settings and back."""

import argparse

import pytest

from fedwright.cli import device
from fedwright.cli.main import build_parser, main
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.service import arguments


def parsed(*words: str) -> argparse.Namespace:
    return build_parser("device").parse_args(["device", "run", "--broker", "mqtt://b", "--data", "npz:d", *words])


def test_the_first_edge_is_home_and_the_others_follow() -> None:
    config = device.config_of(parsed("--edge", "one", "--edge", "two", "--edge", "three", "--patience", "4"))

    assert (config.fleet, config.further, config.patience_s) == ("one", ("two", "three"), 4.0)


def test_without_edges_a_device_has_one_home() -> None:
    assert device.config_of(parsed("--fleet", "home")).fleet == "home"
    assert device.config_of(parsed()).further == ()


def test_an_edge_is_not_a_fleet_besides(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["device", "run", "--broker", "mqtt://b", "--data", "npz:d", "--edge", "one", "--fleet", "home"]

    assert main(words) == 1
    assert "--edge and --fleet are both given" in capsys.readouterr().err


@pytest.mark.parametrize("further", [(), ("two",), ("two", "three")], ids=len)
def test_a_service_starts_with_the_same_edges(further: tuple[str, ...]) -> None:
    config = AgentConfig("mqtt://b", "pi", "npz:d", fleet="one", further=further, patience_s=7.5 if further else 15.0)

    again = device.config_of(build_parser("device").parse_args(["device", "run", *arguments(config)]))

    assert again == config
