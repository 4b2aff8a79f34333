"""All commands with all their options, for what is made from them: completion, manual pages, the reference."""

import argparse
import importlib
from collections.abc import Iterator
from typing import NamedTuple

from fedwright.cli.main import GROUPS, build_parser


class Command(NamedTuple):
    """One command by the words that call it, such as ("server", "run")."""

    words: tuple[str, ...]
    summary: str
    parser: argparse.ArgumentParser

    @property
    def options(self) -> list[argparse.Action]:
        """What begins with a dash and is shown in the help."""
        return [action for action in self.parser._actions if action.option_strings and _is_shown(action)]

    @property
    def arguments(self) -> list[argparse.Action]:
        """What is told by its place."""
        plain = [action for action in self.parser._actions if not action.option_strings]
        return [action for action in plain if _subparsers(action) is None and _is_shown(action)]

    @property
    def inner(self) -> list[str]:
        """The commands below this one."""
        found = [_subparsers(action) for action in self.parser._actions]
        return [name for subparsers in found if subparsers is not None for name in subparsers.choices]


def whole_parser() -> argparse.ArgumentParser:
    """The parser of `fedwright` that knows every command in full."""
    parser = build_parser(None)
    [subparsers] = [found for action in parser._actions if (found := _subparsers(action)) is not None]
    subparsers._name_parser_map.clear()
    subparsers._choices_actions.clear()
    for group in GROUPS:
        importlib.import_module(group.module).add_parser(subparsers)
    return parser


def commands() -> Iterator[Command]:
    """Every command, outer ones before those inside them."""
    yield from _below(Command((), "", whole_parser()))


def _below(command: Command) -> Iterator[Command]:
    yield command
    for action in command.parser._actions:
        subparsers = _subparsers(action)
        if subparsers is not None:
            summaries = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
            for name, parser in subparsers.choices.items():
                yield from _below(Command((*command.words, name), summaries.get(name, ""), parser))


def _subparsers(action: argparse.Action) -> "argparse._SubParsersAction[argparse.ArgumentParser] | None":
    return action if isinstance(action, argparse._SubParsersAction) else None


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS


def shown_name(action: argparse.Action) -> str:
    """An option or argument as a usage line writes it: --rounds N, CONFIG."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    value = f"{{{','.join(map(str, action.choices))}}}" if action.choices and not action.metavar else value
    if not action.option_strings:
        return value
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}"


def help_text(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help of an option or argument with its default filled in."""
    return parser._get_formatter()._expand_help(action) if action.help else ""
