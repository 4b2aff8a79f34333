"""Tables of a document, made from committed results.

`fedwright bench report --document FILE` makes them anew after a suite was measured again.

A table stands between `<!-- FILE | TITLE | COLUMNS -->` and `<!-- end -->`: the name of a result, words that the title
of one of its tables begins with (or `checks`), and the columns to show, or * for all.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.report import checks_of
from fedwright.benchmarks.harness.tables import Row, markdown
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import replace_file

MARKED = re.compile(r"<!-- ([\w-]+\.json) \| (.+?) \| (.+?) -->\n.*?<!-- end -->", flags=re.DOTALL)


def fill_document(document: Path, results: Path) -> None:
    """Make every marked table of a Markdown file anew from a folder of results."""
    try:
        text = document.read_text(encoding="utf-8")
    except OSError as err:
        raise ConfigError(f"--document {document} cannot be read ({err.strerror}); name a Markdown file") from err
    replace_file(document, filled(text, results).encode())


def filled(text: str, results: Path) -> str:
    """The text with every marked table made anew."""
    return MARKED.sub(lambda found: _table(found, results), text)


def _table(found: re.Match[str], results: Path) -> str:
    file, title, columns = found.groups()
    path = results / file
    if not path.exists():
        raise ConfigError(f"there is no result {path}; make it with `fedwright bench {path.stem} --json {path}`")
    result = json.loads(path.read_text(encoding="utf-8"))
    rows = _rows(result, title, file)
    if columns != "*":
        names = [name.strip() for name in columns.split(",")]
        rows = [{name: row.get(name) for name in names} for row in rows]
    below = f"`{result['command']}` on {result['date']}, {result['machine']}"
    return f"<!-- {file} | {title} | {columns} -->\n{markdown(rows)}\n{below}\n<!-- end -->"


def _rows(result: Mapping[str, Any], title: str, file: str) -> list[Row]:
    if title == "checks":
        return list(checks_of(result))
    for name, rows in result["tables"].items():
        if name.startswith(title):
            return list(rows)
    raise ConfigError(f"{file} has no table {title!r}; it has {', '.join(result['tables'])}")
