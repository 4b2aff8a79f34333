"""Every suite file says what it shows and how to run it, and holds configs that a run would take."""

from importlib import resources

import pytest
import tomllib

from fedwright.cli.bench import SUITES

FOLDER = resources.files("fedwright.benchmarks").joinpath("suites")
FILES = sorted(entry.name for entry in FOLDER.iterdir() if entry.name.endswith(".toml"))
NAMES = [name.removesuffix(".toml") for name in FILES]


def test_no_suite_file_was_lost_or_forgotten() -> None:
    assert len(FILES) == 19
    assert [name for name in NAMES if name not in SUITES] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_header_says_what_it_shows_and_how_to_run_it(name: str) -> None:
    lines = FOLDER.joinpath(f"{name}.toml").read_text().splitlines()
    header = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))

    assert lines[0].startswith("# ")
    assert f"fedwright bench {name} [--quick] [--seeds N]" in header


@pytest.mark.parametrize("name", NAMES)
def test_quick_changes_only_what_there_is(name: str) -> None:
    found = tomllib.loads(FOLDER.joinpath(f"{name}.toml").read_text())

    assert found["suite"]["seeds"] >= 3
    assert found["quick"].keys() - found["suite"].keys() <= {"methods", "only", "without"}
    assert found["quick"].get("rounds", 1) <= found["suite"].get("rounds", 1)


# Suites whose subject is who may do harm, or what a wire carries.
NOT_OF_PAPERS = ("bytes", "hostile", "hostile-lenet", "privacy")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_OF_PAPERS])
def test_methods_are_compared_as_their_papers_have_them(name: str) -> None:
    update = tomllib.loads(FOLDER.joinpath(f"{name}.toml").read_text())["config"]["update"]

    assert (update["norm_factor"], update["weight_cap"]) == (0, 0)
