"""`fedwright explain | completion | man`: what is made from the commands and errors themselves."""

import argparse
import sys
from pathlib import Path

from fedwright.cli.arguments import command, example
from fedwright.protocol.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")
COMPLETION_EXAMPLES = """examples:
  fedwright completion bash > ~/.local/share/bash-completion/completions/fedwright
  fedwright completion zsh > "${fpath[1]}/_fedwright"
  fedwright completion fish > ~/.config/fish/completions/fedwright.fish
"""
MAN_EXAMPLE = """example:
  fedwright man ~/.local/share/man/man1

`man fedwright-server-run` then shows a page; without an installed man page, every command has --help.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the three commands."""
    explain = command(subparsers, "explain", "say what an error code means and what helps", example("explain FW401"))
    explain.add_argument("code", metavar="CODE", nargs="?", help="such as FW401; without one: all of them")
    explain.set_defaults(run=_explain)
    summary = "print what makes a shell complete commands and options"
    completion = command(subparsers, "completion", summary, COMPLETION_EXAMPLES)
    completion.add_argument("shell", choices=SHELLS, help="which shell it is for")
    completion.set_defaults(run=_completion)
    man = command(subparsers, "man", "write a manual page for every command", MAN_EXAMPLE)
    man.add_argument("folder", metavar="DIR", type=Path, help="where they go, such as ~/.local/share/man/man1")
    man.set_defaults(run=_man)


def _explain(args: argparse.Namespace) -> int:
    from fedwright.cli.explanations import BY_CODE

    if args.code is None:
        for code, (name, known) in BY_CODE.items():
            print(f"{code}  {name:<20} {known.meaning}")
        return 0
    if args.code.upper() not in BY_CODE:
        raise ConfigError(f"there is no error {args.code!r}; `fedwright explain` lists them all")
    name, known = BY_CODE[args.code.upper()]
    print(f"{args.code.upper()} ({name}): {known.meaning}")
    for title, lines in (("causes", known.causes), ("what helps", known.cures)):
        print(f"\n{title}:")
        for line in lines:
            print(f"  - {line}")
    print(f"\nin the documentation: reference/errors.html#{args.code.lower()}")
    return 0


def _completion(args: argparse.Namespace) -> int:
    from fedwright.cli.completion import script_for

    sys.stdout.write(script_for(args.shell))
    return 0


def _man(args: argparse.Namespace) -> int:
    from fedwright.cli.manual import manual_pages

    args.folder.mkdir(parents=True, exist_ok=True)
    pages = manual_pages()
    for name, text in pages.items():
        (args.folder / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(pages)} pages into {args.folder}")
    return 0
