"""The README tells the truth: the files it names exist, the commands it shows are commands."""

import re
import shlex

import pytest

from fedwright.cli.main import build_parser
from helpers.tools import REPO

TEXT = (REPO / "README.md").read_text()
BLOCKS = re.findall(r"```\n(.*?)```", TEXT, flags=re.DOTALL)
PLAIN = re.sub(r"```\n.*?```", "", TEXT, flags=re.DOTALL)
QUOTED = re.findall(r"`([^`\n]+)`", PLAIN)
FILES = sorted(
    {word for word in QUOTED if (re.fullmatch(r"[\w./-]+(\.\w+|/)", word) and "/" in word) or word.endswith(".md")}
)
COMMANDS = sorted(
    {
        line[line.index("fedwright ") :].split(" > ")[0]
        for line in [*"".join(BLOCKS).splitlines(), *QUOTED]
        if re.match(r"(sudo )?(\S*/)?fedwright [a-z]", line)
    }
)
LISTED = ("methods", "models", "profiles", "datasets")


def test_the_readme_names_files_and_commands() -> None:
    assert len(FILES) > 20
    assert len(COMMANDS) > 12


@pytest.mark.parametrize("name", FILES)
def test_a_named_file_exists(name: str) -> None:
    assert (REPO / name).exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shown_command_is_understood(command: str) -> None:
    words = shlex.split(command)[1:]

    args = build_parser(words[0]).parse_args(words)

    assert callable(args.run)


def test_every_make_target_exists() -> None:
    makefile = (REPO / "Makefile").read_text()
    targets = {line.split()[1] for line in [*"".join(BLOCKS).splitlines(), *QUOTED] if line.startswith("make ")}

    assert {"demo", "test"} <= targets
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def test_the_tables_are_whole() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", PLAIN, flags=re.MULTILINE)

    assert len(tables) > 3
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1
