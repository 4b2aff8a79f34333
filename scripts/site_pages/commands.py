"""The reference of the command line, from the parsers themselves."""

import html

from fedwright.cli.command_tree import Command, commands, help_text, shown_name

HEAD = """# Command line

Made from the parsers of this version. Every command has `--help`; exit codes have [a page of their own](exit-codes.md).

"""


def command_page() -> str:
    """One section for each command with its options and examples."""
    return HEAD + "\n".join(_section(command) for command in commands())


def _section(command: Command) -> str:
    title = " ".join(("fedwright", *command.words))
    parts = [f"{'##' if len(command.words) < 2 else '###'} {title}\n"]
    about = command.parser.description or command.summary
    parts.append(f"{html.escape(about, quote=False)}\n")
    rows = [*command.arguments, *command.options]
    if command.inner:
        parts.append("Commands: " + ", ".join(f"`{name}`" for name in command.inner) + "\n")
    if rows:
        table = [f"| `{shown_name(row)}` | {_cell(help_text(command.parser, row))} |" for row in rows]
        parts.append("\n".join(["| option | meaning |", "| --- | --- |", *table]) + "\n")
    if command.parser.epilog:
        parts.append(f"```text\n{command.parser.epilog.strip()}\n```\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|").replace("\n", " ")
