"""The package that docs/plug-ins.md and docs/own-method.md show, word for word, as it would lie installed."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import tomllib

from helpers.tools import REPO

HALF_STEP = "python:half_step:HalfStep"
OWN_METHOD, PLUG_INS = REPO / "docs" / "own-method.md", REPO / "docs" / "plug-ins.md"
MODULES = ("my_package", "half_step")
Points = Mapping[str, Mapping[str, str]]


def shown_files(document: Path) -> dict[str, str]:
    """The blocks of a document that begin with the name of a file, by that name."""
    blocks = re.findall(r"^```\w+\n(.*?)^```", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    named = [(re.match(r"# ([\w./-]+\.(?:py|toml))\n", block), block) for block in blocks]
    return {match[1]: block for match, block in named if match}


def shown_blocks(document: Path, language: str) -> list[str]:
    """All blocks of a document in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), flags=re.DOTALL | re.MULTILINE)


def write_half_step(folder: Path) -> None:
    """half_step.py as docs/own-method.md shows it."""
    (folder / "half_step.py").write_text(shown_files(OWN_METHOD)["half_step.py"])


def install(folder: Path, name: str, points: Points, files: Mapping[str, str]) -> None:
    """A distribution of that name as pip leaves it: its files, and the entry points in its metadata."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in names.items())
        for group, names in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))


def install_example(folder: Path) -> None:
    """The package of the documents."""
    files = shown_files(PLUG_INS)
    points = tomllib.loads(files.pop("pyproject.toml"))["project"]["entry-points"]
    half_step = shown_files(OWN_METHOD)["half_step.py"]
    install(folder, "my-package", points, {"my_package/__init__.py": "", "my_package/half_step.py": half_step, **files})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder where Python looks for packages; what is imported from it is forgotten afterwards."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def example(installed: Path) -> Path:
    """The package of the documents, installed."""
    install_example(installed)
    return installed
