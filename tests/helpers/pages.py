"""The code blocks of the documentation, and how each kind is tried in an empty folder."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tomllib
import yaml

from fedwright.cli.main import build_parser, main
from fedwright.protocol.support import plugins
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.edge.config import is_edge
from helpers.tools import REPO

BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>.*?) -->\n)?^```(?P<language>[a-z]*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)
NAME = re.compile(r"# (?P<name>[\w./-]+\.(?:py|toml))\n")
# Pages whose files of these languages another test runs, each by its name: here they are only put where the page says.
RUN_BY_NAME = {
    "python.md": ("python",),
    "own-model.md": ("python",),
    "plug-ins.md": ("python", "toml"),
    "concepts/wire-protocol.md": ("python",),
}
PACKAGE = "pyproject.toml"
GROUPS = {kind.name for kind in vars(plugins).values() if isinstance(kind, plugins.PluginKind)}
PROGRAMS = {"mkdir", "pip", "pkg", "python", "python3", "sudo", "apt", "proot-distro", "systemctl", "cd", "rm"}
OURS = re.compile(r"(?:sudo )?(?:[A-Z_]+=\S+ )?(?:\S*/)?fedwright (?P<words>.*)")


@dataclass(frozen=True)
class Block:
    """One fenced block: why it is not run here (empty when it is), its language, its file's name if it has one."""

    page: str
    language: str
    text: str
    why: str

    @property
    def file(self) -> str:
        """The name that its first line gives it, or nothing."""
        found = NAME.match(self.text)
        return found["name"] if found else ""

    def __str__(self) -> str:
        return f"{self.page}: {self.text.strip().splitlines()[0][:50]}"


def blocks_of(page: str, text: str) -> list[Block]:
    """Every block of a page in its order."""
    found = BLOCK.finditer(text)
    return [Block(page, each["language"], each["text"], each["why"] or "") for each in found]


def commands_of(block: Block) -> Iterator[str]:
    """Lines of a shell block, without remarks."""
    for line in block.text.splitlines():
        command = re.split(r"\s\s+#", line)[0].strip()
        if command and not command.startswith("#"):
            yield from command.split(" && ")


def check_words(command: str) -> None:
    """A command that is not run must at least be one: ours is parsed, another is of a program that is known."""
    ours = OURS.fullmatch(command)
    if command.startswith("make "):
        assert f"\n{shlex.split(command)[1]}:" in (REPO / "Makefile").read_text(), command
        return
    if ours is None:
        program = shlex.split(command)[0].rsplit("/", 1)[-1]
        assert program in PROGRAMS, command
        return
    words = shlex.split(ours["words"].split(" > ")[0].replace("$(hostname)", "board"))
    assert callable(build_parser(words[0]).parse_args(words).run)


def run_command(command: str) -> None:
    """Do what a shell would do, inside this process: our own commands, > and cd."""
    call, _, file = command.partition(" > ")
    words = shlex.split(call)
    if words[0] == "python":
        _run_program(words[1], words[2:])
        return
    assert words[0] == "fedwright", command
    with ExitStack() as stack:
        if file:
            stack.enter_context(redirect_stdout(stack.enter_context(Path(file).open("w"))))
        code = main(words[1:])
    assert code == 0, command


def _run_program(file: str, arguments: list[str]) -> None:
    """A program, or the cells of a notebook one after the other."""
    with patch.object(sys, "argv", [file, *arguments]):
        if file.endswith(".ipynb"):
            cells = [cell for cell in json.loads(Path(file).read_text())["cells"] if cell["cell_type"] == "code"]
            file = "notebook.py"
            text = "\n\n".join("".join(cell["source"]) for cell in cells)
            Path(file).write_text(text.replace("ROUNDS, SEEDS = 6, (1, 2)", "ROUNDS, SEEDS = 1, (1,)"))
        runpy.run_path(file, run_name="__main__")


def try_block(block: Block, folder: Path) -> Path:
    """Run or check one block in a folder; the folder in which the next one of the page goes on."""
    with chdir(folder):
        name = block.file or f"block.{block.language}"
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(block.text)
        if block.language in RUN_BY_NAME.get(block.page, ()):
            return folder
        if block.language == "toml":
            _check_toml(block)
        elif block.language == "python":
            runpy.run_path(name, run_name="__main__")
        elif block.language == "yaml":
            assert all(isinstance(part, dict) for part in yaml.safe_load_all(block.text))
        elif block.language == "dockerfile":
            assert block.text.startswith("FROM ")
        elif block.language == "sh":
            return _shell(block, folder)
    return folder


def _shell(block: Block, folder: Path) -> Path:
    for command in commands_of(block):
        if block.why:
            check_words(command)
        elif command.startswith("cd "):
            folder = folder / command.removeprefix("cd ")
        else:
            with chdir(folder):
                run_command(command)
    return folder


def _check_toml(block: Block) -> None:
    """A config, or a part that must fit into one; or what a package offers."""
    found: Mapping[str, Any] = tomllib.loads(block.text)
    if block.file == PACKAGE:
        unknown = found["project"]["entry-points"].keys() - GROUPS
        assert not unknown, unknown
        return
    if not is_edge(block.text):
        config_from_dict({"method": {"name": "fedavg"}, **found}, where=str(block))


def try_pages(pages: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What went wrong on each page; one process tries them all, because starting one takes longer than most blocks."""
    paths = os.pathsep.join([str(REPO), str(REPO / "tests")])
    done = subprocess.run(
        [sys.executable, str(REPO / "tests/helpers/page_process.py"), str(folder)],
        input=json.dumps(pages),
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads((folder / "problems.json").read_text())
    return found
