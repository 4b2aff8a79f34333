"""Every code block of every page is run, or, where that takes a board or a network, checked."""

import re
from pathlib import Path

import pytest

from helpers.page_process import try_page
from helpers.pages import RUN_BY_NAME, Block, blocks_of, check_words, try_block, try_pages
from helpers.tools import REPO
from site_pages.documents import document_pages
from site_pages.methods import method_pages

DOCS = REPO / "docs"
TEXTS = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
TEXTS |= document_pages()
BLOCKS = {page: blocks_of(page, text) for page, text in TEXTS.items()}
# Where the files that a page shows are run (helpers/pages.py says of which languages).
ELSEWHERE = {
    "python.md": "tests/e2e/test_python_page.py",
    "own-model.md": "tests/e2e/test_own_model.py",
    "plug-ins.md": "tests/cli/test_plugins.py",
    "concepts/wire-protocol.md": "tests/e2e/test_second_client.py",
}
# One block for each way in which a block can be wrong, and what is said of it.
BROKEN = [
    ("python", "import nothing_of_this_name\n", "nothing_of_this_name"),
    ("python", "assert 1 + 1 == 3\n", "AssertionError"),
    ("toml", "[run]\nroundz = 3\n", "roundz"),
    ("toml", "# pyproject.toml\n[project.entry-points]\n'fedwright.nothing' = { a = 'b:c' }\n", "fedwright.nothing"),
    ("sh", "fedwright validate nowhere.toml\n", "fedwright validate nowhere.toml"),
    ("yaml", "- [\n", "yaml"),
    ("dockerfile", "RUN true\n", "FROM"),
]
LANGUAGES = {"python", "toml", "sh", "text", "yaml", "dockerfile"}
PAGES = [page for page, blocks in BLOCKS.items() if blocks]


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


def test_no_file_that_is_run_elsewhere_is_without_a_name() -> None:
    shown = [block for page, languages in RUN_BY_NAME.items() for block in BLOCKS[page] if block.language in languages]

    assert [str(block) for block in shown if not block.file] == []
    assert {block.page for block in shown} == RUN_BY_NAME.keys() == ELSEWHERE.keys()


@pytest.mark.parametrize(("language", "text", "sentence"), BROKEN, ids=[f"{kind} {said}" for kind, _, said in BROKEN])
@pytest.mark.parametrize("page", ["using.md", "own-method.md", "methods/hasa.md", "contributing.md"])
def test_a_broken_block_is_found(page: str, language: str, text: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in try_page(page, f"# A page\n\n```{language}\n{text}```\n", tmp_path)


@pytest.mark.parametrize("page", RUN_BY_NAME)
def test_a_wrong_part_of_a_config_is_found_where_files_are_run_elsewhere(page: str, tmp_path: Path) -> None:
    wrong = "```toml\n[run]\nroundz = 3\n```\n"

    assert "toml" in RUN_BY_NAME[page] or "roundz" in try_page(page, wrong, tmp_path)


def test_every_block_says_what_it_is() -> None:
    unknown = [str(block) for page in PAGES for block in BLOCKS[page] if block.language not in LANGUAGES]

    assert unknown == []
    assert len(PAGES) > 15


def test_tests_that_are_named_are_there() -> None:
    named = {name for blocks in BLOCKS.values() for block in blocks for name in re.findall(r"tests/\S+\.py", block.why)}

    assert [name for name in named | set(ELSEWHERE.values()) if not (REPO / name).exists()] == []


@pytest.mark.parametrize("command", ["fedwright server rnu", "fedwright init", "reboot now", "make tset"])
def test_a_wrong_command_is_found(command: str) -> None:
    with pytest.raises((SystemExit, AssertionError)):
        check_words(command)


def test_a_wrong_setting_is_found(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="roundz"):
        try_block(Block("page", "toml", "[run]\nroundz = 3\n", ""), tmp_path)
