"""Which configs may ask for sums of changes, and what the others are told."""

from typing import Any

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import RunConfig, config_from_dict
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.server_runtime.methods.summed import REASONS, SUMMED
from fedwright.server_runtime.rounds.secure.options import secure_options

SETTINGS: dict[str, dict[str, Any]] = {"hasa": {"width_step": 0.2}, "fedconv": {"group": "ratio"}}
SETTINGS["framp"] = {"alike": 3, "align": 0, "granularity": "channel"}
SETTINGS["hyperflora"] = {"alike": 3, "pairs": False}
SETTINGS["pfedhn"] = {"alike": 3, "parallel": True}
SETTINGS["slice-tuned"] = SETTINGS["fedconv"]


def read(name: str, settings: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    method = {"name": name, **(SETTINGS.get(name, {}) if settings is None else settings)}
    update = {"secure": True, **sections.pop("update", {})}
    return config_from_dict({"method": method, "update": update, **sections}, where="run.toml")


def test_the_lists_name_methods_that_there_are() -> None:
    assert SUMMED | REASONS.keys() <= METHODS.keys()
    assert not SUMMED & REASONS.keys()


@pytest.mark.parametrize("name", sorted(SUMMED))
def test_methods_that_average_may_be_summed(name: str) -> None:
    read(name)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - SUMMED))
def test_others_refuse_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"run.toml \[update\] secure is true but {name} cannot do with sums: "):
        read(name)


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"update": {"combine": "median"}}, "combine is 'median', but sums know 'mean' alone"),
        ({"update": {"codec": "int8"}}, "codec is 'int8'"),
        ({"update": {"keep_ratio": 0.1}}, "keep_ratio is 0.1"),
        ({"update": {"class_means": True}}, "class_means is True"),
        ({"update": {"secure_least": 2}}, "secure_least"),
        ({"update": {"secure_neighbours": 31}}, "secure_neighbours"),
        ({"update": {"secure_threshold": 0.66}}, "secure_threshold"),
        ({"fleet": {"buffer": 3}}, "remove fleet.buffer"),
    ],
    ids=[
        "robust",
        "rounded",
        "sparse",
        "class means",
        "two devices",
        "few neighbours",
        "low threshold",
        "asynchronous",
    ],
)
def test_settings_that_look_at_single_updates_are_refused(sections: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read("fedavg", **sections)


def test_a_config_says_how_many_neighbours_and_who_must_stay() -> None:
    asked = secure_options(read("fedavg", update={"secure_neighbours": 48, "secure_threshold": 0.8}))
    assert (asked.neighbours, asked.threshold) == (48, 0.8)


def test_methods_that_give_every_device_its_own_part_say_how_to_share_them() -> None:
    with pytest.raises(ConfigError, match=r"set method\.width_step, such as 0\.2"):
        read("hasa", {})
    with pytest.raises(ConfigError, match=r"set method\.group = 'ratio'"):
        read("fedconv", {"group": "device"})


@pytest.mark.parametrize("name", ["framp", "hyperflora", "pfedhn"])
def test_hypernetworks_learn_from_sums_of_devices_that_share_a_description(name: str) -> None:
    settings = SETTINGS[name]
    with pytest.raises(ConfigError, match=r"set method\.alike = 3 or more"):
        read(name, {**settings, "alike": 2})
    for key in settings.keys() - {"alike"}:
        with pytest.raises(ConfigError, match=rf"set method\.{key} = "):
            read(name, {other: value for other, value in settings.items() if other != key})
