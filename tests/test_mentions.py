"""Messages name options, settings and commands that exist."""

import argparse
import ast
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest

from fedwright.cli import main as cli
from fedwright.server_runtime import config
from fedwright.server_runtime.edge import config as edge
from fedwright.server_runtime.methods.registry import METHODS
from helpers.layout import Module, below, sources_of
from helpers.tools import REPO

# Options of Chromium, pip, venv, systemctl and of the system that one suite compares with.
FOREIGN = {"--force-reinstall", "--upgrade", "--now", "--clear", "--no-input", "--no-deps"}
FOREIGN |= {"--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"}
FOREIGN |= {"--no-index", "--find-links", "--dest", "--quiet", "--disable-pip-version-check", "--only-binary"}
FOREIGN |= {"--implementation", "--python-version"}
# Of browsers.
FOREIGN |= {"--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"}
FOREIGN |= {"--headless", "--disable-component-update", "--disable-sync"}
# Of PostgreSQL's initdb.
FOREIGN |= {"--no-sync", "--no-locale"}
ELSEWHERE = "fedwright.benchmarks.peers"
# What follows a section's name in the name of a file.
ENDINGS = {"md", "toml", "onnx", "log", "out", "sqlite", "npz"}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
COMMAND = re.compile(r"(?<![\w./-])fedwright ((?:[a-z-]+ ?){1,2})")
# Sentences about the project, and words under which keys are derived.
NO_COMMAND = {"again", "release", "sum"}


def literals(module: Module) -> Iterator[tuple[int, str]]:
    """The texts of a module with their lines, f-strings with {} for what is filled in; docstrings are left out."""
    skipped: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def parsers(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Every command below a parser, with its options."""
    yield words, {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from parsers(inner, (*words, name))


def commands() -> dict[tuple[str, ...], set[str]]:
    found: dict[tuple[str, ...], set[str]] = {}
    for name in [name for group in cli.GROUPS for name in group.commands]:
        action = next(a for a in cli.build_parser(name)._actions if isinstance(a, argparse._SubParsersAction))
        found |= dict(parsers(action.choices[name], (name,)))
    return found


def keys(cls: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def sections() -> dict[str, set[str]]:
    """The keys of every section of a run's and of an edge's config."""
    found = {name: keys(cls) for name, cls in config.SECTIONS.items()}
    for name, cls in edge.SECTIONS.items():
        found[name] = found.get(name, set()) | keys(cls)
    return found | {"method": {"name"}.union(*(keys(entry.params) for entry in METHODS.values()))}


COMMANDS, SECTIONS = commands(), sections()
OPTIONS = {"--version"}.union(*COMMANDS.values())
KEY = re.compile(rf"(?<![\w./])({'|'.join(SECTIONS)})\.([a-z_]+)\b")


def unknown(module: Module) -> Iterator[str]:
    """What a module's texts name that there is not."""
    foreign = below(module.name, ELSEWHERE)
    for line, text in literals(module):
        for option in OPTION.findall(text):
            if option not in OPTIONS | FOREIGN and not foreign:
                yield f"{module.name}:{line} names the option {option}"
        for section, key in KEY.findall(text):
            if key not in SECTIONS[section] | ENDINGS:
                yield f"{module.name}:{line} names the setting {section}.{key}"
        for match in COMMAND.finditer(text):
            words = tuple(match.group(1).split())
            grouped = any(len(name) > 1 and name[0] == words[0] for name in COMMANDS)
            if words[0] not in NO_COMMAND and words[: 2 if grouped else 1] not in COMMANDS:
                yield f"{module.name}:{line} names the command fedwright {' '.join(words)}"


def test_what_messages_name_is_there() -> None:
    modules = sources_of(REPO)

    assert [sentence for module in modules for sentence in unknown(module)] == []
    assert sum(len(OPTION.findall(text)) for module in modules for _, text in literals(module)) > 200


@pytest.mark.parametrize(
    "text",
    [
        "check --ca and --cert",
        "set fleet.harbour",
        "set exchange.forms",
        "use `fedwright fly`",
        "see fedwright server start",
    ],
)
def test_what_is_not_there_is_found(text: str) -> None:
    assert list(unknown(Module("fedwright.x", f"say({text!r})")))
    assert list(unknown(Module("fedwright.x", f"say(f'{{1}} {text}')")))


def test_docstrings_and_names_of_files_are_left_in_peace() -> None:
    module = Module("fedwright.x", '"""About --nothing."""\nsay("run.toml --json, fedwright server run, model.model")')

    assert list(unknown(module)) == []
