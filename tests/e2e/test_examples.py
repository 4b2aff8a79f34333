"""Every example runs with the command that its README shows, and the documents show the code that the examples hold."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from helpers.tools import REPO, run

EXAMPLES = sorted(path.parent for path in (REPO / "examples").glob("*/README.md"))


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_runs_as_its_readme_says(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [command] = re.findall(r"```\nfedwright (.*?)\n```", (folder / "README.md").read_text())
    shutil.copytree(folder, tmp_path / folder.name)
    monkeypatch.chdir(tmp_path / folder.name)

    run([sys.executable, "-m", "fedwright", *shlex.split(command), "--json", "result.json"])

    devices = json.loads(Path("result.json").read_text())["devices"]
    accuracies = [device["accuracy_after"] for device in devices]
    assert sum(accuracies) / len(accuracies) > 0.5


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (REPO / "examples/README.md").read_text(), flags=re.MULTILINE)

    assert sorted(listed) == [folder.name for folder in EXAMPLES]
    assert EXAMPLES


def test_the_document_shows_the_method_of_the_example() -> None:
    [shown] = re.findall(
        r"```python\n# half_step.py\n(.*?)```", (REPO / "docs/own-method.md").read_text(), flags=re.DOTALL
    )

    assert (REPO / "examples/own_method/half_step.py").read_text().endswith(shown)
