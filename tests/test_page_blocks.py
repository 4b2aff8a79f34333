"""Every code block of every page is run, or, where that takes a board or a network, checked."""

import re
from pathlib import Path

import pytest

from helpers.pages import Block, blocks_of, check_words, try_block, try_pages
from helpers.tools import REPO
from site_pages.methods import method_pages

DOCS = REPO / "docs"
TEXTS = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
BLOCKS = {page: blocks_of(page, text) for page, text in TEXTS.items()}
# Pages whose blocks have a test of their own.
ELSEWHERE = {
    "python.md": "tests/e2e/test_python_page.py",
    "own-method.md": "tests/e2e/test_examples.py",
    "own-model.md": "tests/e2e/test_own_model.py",
    "plug-ins.md": "tests/cli/test_plugins.py",
    "using.md": "tests/test_readme.py",
    "concepts/wire-protocol.md": "tests/e2e/test_second_client.py",
}
LANGUAGES = {"python", "toml", "sh", "text", "yaml", "dockerfile"}
PAGES = [page for page, blocks in BLOCKS.items() if blocks and page not in ELSEWHERE]


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong on each page, those of methods included."""
    made = {page: text for page, text in method_pages().items() if page not in TEXTS}
    return try_pages({page: TEXTS[page] for page in PAGES} | made, tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_work_in_an_empty_folder(page: str, problems: dict[str, str]) -> None:
    assert problems[page] == ""


def test_the_commands_of_every_methods_page_work(problems: dict[str, str]) -> None:
    assert {page: problem for page, problem in problems.items() if problem and page not in PAGES} == {}
    assert len(problems) > len(PAGES) + 20


def test_every_block_says_what_it_is() -> None:
    unknown = [str(block) for page in PAGES for block in BLOCKS[page] if block.language not in LANGUAGES]

    assert unknown == []
    assert len(PAGES) > 15


def test_tests_that_are_named_are_there() -> None:
    named = {name for blocks in BLOCKS.values() for block in blocks for name in re.findall(r"tests/\S+\.py", block.why)}

    assert [name for name in named | set(ELSEWHERE.values()) if not (REPO / name).exists()] == []


@pytest.mark.parametrize("command", ["fedwright server rnu", "fedwright init", "reboot now"])
def test_a_wrong_command_is_found(command: str) -> None:
    with pytest.raises((SystemExit, AssertionError)):
        check_words(command)


def test_a_wrong_setting_is_found(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="roundz"):
        try_block(Block("page", "toml", "[run]\nroundz = 3\n", ""), tmp_path)
