"""Manual pages in the man format, one for each command, from the commands themselves."""

from fedwright import __version__
from fedwright.cli.command_tree import Command, commands, help_text, shown_name
from fedwright.cli.main import EXIT_CODES

SECTION = 1


def manual_pages() -> dict[str, str]:
    """The text of each page by the name of its file, such as fedwright-server-run.1."""
    found = list(commands())
    return {f"{_name(command)}.{SECTION}": _page(command, found) for command in found}


def _name(command: Command) -> str:
    return "-".join(("fedwright", *command.words))


def _page(command: Command, known: list[Command]) -> str:
    name = _name(command)
    parser = command.parser
    summary = command.summary or "trains one learning task across a fleet of unequal edge devices"
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    lines = [
        f'.TH "{name.upper()}" "{SECTION}" "" "fedwright {__version__}" "Fedwright"',
        ".SH NAME",
        _plain(f"{name} - {summary}"),
        ".SH SYNOPSIS",
        _plain(usage),
        ".SH DESCRIPTION",
        _plain(parser.description or summary),
    ]
    rows = [*command.arguments, *command.options]
    if rows:
        lines.append(".SH OPTIONS")
    for row in rows:
        lines += [".TP", f".B {_plain(shown_name(row))}", _plain(help_text(parser, row))]
    lines += [".SH EXIT STATUS"]
    for code, meaning in EXIT_CODES.items():
        lines += [".TP", f".B {code}", _plain(meaning)]
    if parser.epilog:
        lines += [".SH NOTES", ".nf", *map(_plain, parser.epilog.strip().splitlines()), ".fi"]
    others = [other for other in known if other.words[:-1] in (command.words, command.words[:-1]) and other != command]
    if others:
        lines += [".SH SEE ALSO", _plain(", ".join(f"{_name(other)}({SECTION})" for other in others if other.words))]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text in which nothing is an instruction to the formatter."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
