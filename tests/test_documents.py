"""Documents and docstrings name files that are there; links lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwright.server_runtime.methods.registry import METHODS
from helpers.layout import modules_of, sources_of
from helpers.tools import REPO
from site_hooks import pages

README = REPO / "README.md"
DOCUMENTS = [
    *(REPO / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "profiles/README.md")),
    *sorted((REPO / "docs").rglob("*.md")),
    *sorted((REPO / "examples").rglob("*.md")),
]
FOLDERS = ("protocol", "device_runtime", "server_runtime", "simulation", "benchmarks", "fedwright", "scripts")
FILES = {path for folder in (*FOLDERS, "tests", "examples") for path in (REPO / folder).rglob("*.py")}
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([\w./-]+)`")
# A file of ours by its name or the end of its path, and documents of ours.
NAMED = re.compile(r"(?<![\w.:/{}<$*-])((?:[\w-]+/)*[\w-]+\.py|docs/[\w/-]+\.md)\b")
# Of onnxruntime and torchvision; what a reader is to write: these, and what begins with "my".
FOREIGN = {"build_and_package_info.py", "torchvision/_meta_registrations.py", "study.py", "embedded.py"}
FOREIGN |= {"second_client.py", "make_data.py", "early.py"}
# Made by whoever runs something here, such as the demo; documents name what would be in them.
OUTPUTS = {"runs", "edges", "build", "dist"}
# Made from the code when the site is built, which looks at links to them too.
MADE = {(REPO / "docs" / page).resolve() for page in pages()}


def is_there(name: str) -> bool:
    """Whether a file of ours is called so, by its whole path or the end of it."""
    return (REPO / name).is_file() or any(path.as_posix().endswith(f"/{name}") for path in FILES)


def unknown_files(text: str) -> Iterator[str]:
    """Files that a text names and that are not there."""
    ours = (name for name in NAMED.findall(text) if name not in FOREIGN and not name.startswith("my_"))
    yield from (name for name in ours if not is_there(name))


def anchors(document: Path) -> set[str]:
    """What can follow # in a link to a document."""
    heads = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def dead_links(document: Path) -> Iterator[str]:
    """Links and quoted paths of a document that lead nowhere."""
    text = document.read_text()
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        goal = document.parent / path if path else document
        if goal.resolve() in MADE:
            continue
        if not goal.exists() or (anchor and anchor not in anchors(goal)):
            yield target
    for quoted in QUOTED.findall(text):
        top = quoted.split("/")[0]
        if (
            top
            and top not in OUTPUTS
            and "/" in quoted
            and (REPO / top).is_dir()
            and not any((f / quoted).exists() for f in (REPO, document.parent))
        ):
            yield quoted


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPO).as_posix())
def test_a_document_leads_nowhere_dead(document: Path) -> None:
    assert list(dead_links(document)) == []
    # A document may shorten a path, so the file's name is what counts.
    assert [name for name in unknown_files(document.read_text()) if not is_there(Path(name).name)] == []


def test_docstrings_and_comments_name_files_that_are_there() -> None:
    modules = sources_of(REPO) + modules_of(REPO / "scripts")

    assert [f"{module.name} names {file}" for module in modules for file in unknown_files(module.text)] == []


def test_readme_is_a_screen_and_a_half() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_readme_counts_the_methods() -> None:
    papers = ("FRAMP", "FedConv", "HASA", "HyperFLoRA", "pFedClub")

    assert f"five papers ({', '.join(papers)}) and {len(METHODS) - len(papers)} baselines" in README.read_text()


def test_what_is_dead_is_found(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("# A head\n[a](y.md) [b](#b-head) [c](#a-head) [d](https://d) `docs/nothing.md`\n")

    assert list(dead_links(tmp_path / "x.md")) == ["y.md", "#b-head", "docs/nothing.md"]
    assert list(unknown_files("see nowhere.py, rounds/coordinator.py, docs/none.md and planner.py")) == [
        "nowhere.py",
        "docs/none.md",
    ]
