"""Every example runs with the command that its README shows, and the documents show the code that the examples hold."""

import json
import re
import shutil
from pathlib import Path

import pytest

from helpers.pages import try_pages
from helpers.tools import REPO

EXAMPLES = sorted(path.parent for path in (REPO / "examples").glob("*/README.md"))
# The command of the README in a cheaper form; without a line, it runs as it is with two rounds.
CHEAP = {
    "anomalies": "python run.py 6",
    "board": "python run.py",
    "camera": "python run.py 1",
    "compare": "python compare.ipynb",
    "image_folders": "python run.py 1",
    "own_method": "fedwright simulate run.toml --json result.json",
    "text": "python run.py 4",
}
SHORT = "fedwright simulate run.toml --rounds 2 --json result.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all examples."""
    return Path(shutil.copytree(REPO / "examples", tmp_path_factory.mktemp("examples") / "copy"))


@pytest.fixture(scope="module")
def problems(folder: Path) -> dict[str, str]:
    """What went wrong in each example."""
    return try_pages({each.name: f"```sh\n{CHEAP.get(each.name, SHORT)}\n```" for each in EXAMPLES}, folder)


@pytest.mark.broker
@pytest.mark.parametrize("name", [each.name for each in EXAMPLES])
def test_an_example_runs(name: str, problems: dict[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_its_readme_shows_that_command(example: Path) -> None:
    [command] = re.findall(r"```\n(.*?)\n```", (example / "README.md").read_text())
    kept = CHEAP.get(example.name, SHORT).split(" --")[0].rstrip(" 0123456789")

    assert command.removeprefix("jupyter notebook ") == kept.removeprefix("python " if "ipynb" in kept else "")


@pytest.mark.broker
def test_a_method_of_ones_own_learns(folder: Path, problems: dict[str, str]) -> None:
    devices = json.loads((folder / "own_method/result.json").read_text())["devices"]

    assert sum(device["accuracy_after"] for device in devices) / len(devices) > 0.5


@pytest.mark.broker
def test_bystanders_get_models_and_edges_change_nothing_of_the_count(folder: Path, problems: dict[str, str]) -> None:
    adapters, floor = (json.loads((folder / name / "result.json").read_text()) for name in ("adapters", "shop_floor"))

    assert len(adapters["evaluations"][-1]["devices"]) == 10
    assert [row["updates"] for row in floor["metrics"]] == [12, 12]


@pytest.mark.broker
def test_the_worn_hours_of_a_pump_are_found(folder: Path, problems: dict[str, str]) -> None:
    assert json.loads((folder / "anomalies/worn.json").read_text()) == [15, 16, 17, 18, 19]


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (REPO / "examples/README.md").read_text(), flags=re.MULTILINE)

    assert sorted(listed) == [example.name for example in EXAMPLES]
    assert len(EXAMPLES) > 8


def test_the_document_shows_the_method_of_the_example() -> None:
    [shown] = re.findall(
        r"```python\n# half_step.py\n(.*?)```", (REPO / "docs/own-method.md").read_text(), flags=re.DOTALL
    )

    assert (REPO / "examples/own_method/half_step.py").read_text().endswith(shown)
