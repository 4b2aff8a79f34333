"""A page for each method: equations, when to use it, its settings, its ledger, and what was measured of it."""

import ast
import json
from pathlib import Path
from typing import Any

import tomllib

from fedwright.server_runtime.methods.registry import METHODS, Entry
from site_pages.documents import ROOT
from site_pages.sections import settings_tables

NOTES = ROOT / "docs/methods/notes.toml"
RESULTS = ROOT / "benchmarks/results/methods.json"
COLUMNS = ("mean", "p10", "worst", "kB per round", "device MB", "server s")
SETTINGS_HEAD = """# Settings of methods

Keys of `[method]` beside `name`. `fedwright init METHOD` writes them all with their defaults.
"""


def method_pages() -> dict[str, str]:
    """The text of each method's page by its name in docs/; a document by hand goes on from the head made here."""
    notes = tomllib.loads(NOTES.read_text())
    return {f"methods/{name}.md": _page(entry, notes[name]) for name, entry in METHODS.items()}


def settings_page() -> str:
    """The settings of all methods on one page."""
    parts = [SETTINGS_HEAD]
    for name, entry in sorted(METHODS.items()):
        parts.append(f"## {name}\n\n{entry.summary[0].upper()}{entry.summary[1:]}; [its page](../methods/{name}.md).\n")
        parts += [_deeper(part) for part in settings_tables("method", entry.params)][1:] or ["No settings.\n"]
    return "\n".join(parts)


def _page(entry: Entry, note: dict[str, str]) -> str:
    by_hand = ROOT / "docs/methods" / f"{entry.name}.md"
    tables = [_deeper(part) for part in settings_tables("method", entry.params)][1:]
    return "\n".join(
        [
            f"# {entry.name}\n\n{entry.summary[0].upper()}{entry.summary[1:]}.\n",
            f"$$\n{note['equation']}\n$$\n",
            f"**When to use it.** {note['use']}\n",
            f"```sh\nfedwright init {entry.name} > run.toml\nfedwright validate run.toml\n```\n",
            "## Settings\n",
            *(tables or ["It has no settings of its own.\n"]),
            f"## Ledger\n\n{_ledger(entry)}\n",
            "## Results\n",
            _results(entry.name),
            _row_by_row(by_hand) if by_hand.exists() else "",
        ]
    )


def _deeper(part: str) -> str:
    return part.replace("## [", "### [", 1)


def _ledger(entry: Entry) -> str:
    """What the module says of the paper: implemented, left out, differs."""
    module = str(entry.source).partition(":")[0].replace(".", "/")
    text = ast.get_docstring(ast.parse((ROOT / "server_runtime/methods" / f"{module}.py").read_text())) or ""
    lines: list[str] = []
    for line in text.splitlines()[1:]:
        word, mark, rest = line.partition(": ")
        starts = bool(mark) and word in ("Paper", "Implemented", "Left out", "Differs", "Settings that count")
        lines.append(f"\n**{word}:** {rest}" if starts else line)
    return "\n".join(lines).replace("<", "&lt;").strip()


def _results(name: str) -> str:
    found = json.loads(RESULTS.read_text())
    table = next(rows for title, rows in found["tables"].items() if title.startswith("all methods at equal budgets"))
    rows: list[dict[str, Any]] = [row for row in table if row["method"] in (name, "fedavg")]
    if not any(row["method"] == name for row in rows):
        return "Not measured yet at equal budgets: it came after the last run of `fedwright bench methods`.\n"
    lines = ["| method | " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * len(COLUMNS)]
    lines += [f"| {row['method']} | " + " | ".join(f"{row[key]:.2f}" for key in COLUMNS) + " |" for row in rows]
    about = (
        "Accuracy in percent of each device's own model on its own data (mean, tenth percentile, worst), all methods "
        "at equal budgets on Fashion-MNIST, two seeds; differences of a few points say little. "
        f"`{found['command']}`, {found['date'][:10]}. [All results](../results.md)."
    )
    return "\n".join([*lines, "", about, ""])


def _row_by_row(document: Path) -> str:
    """The document without its title."""
    _, _, rest = document.read_text().partition("\n")
    return f"## The paper, row by row\n{rest}"
