"""Tables of a document, made from committed results.

`fedwright bench report --document FILE` makes them anew after a suite was measured again.

A table stands between `<!-- FILE | TITLE | COLUMNS -->` and `<!-- end -->`: the name of a result, words that the title
of one of its tables begins with (or `checks`), and the columns to show, or * for all.

A plot stands between `<!-- plot FILE | TITLE -->` and `<!-- end -->`; it is drawn from that table into the folder
`images` beside the document.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.plots import pictures
from fedwright.benchmarks.harness.report import checks_of
from fedwright.benchmarks.harness.tables import Row, markdown
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import replace_file

MARKED = re.compile(r"<!-- ([\w-]+\.json) \| (.+?) \| (.+?) -->\n.*?<!-- end -->", flags=re.DOTALL)


PLOTTED = re.compile(r"<!-- plot ([\w-]+\.json) \| (.+?) -->\n.*?<!-- end -->", flags=re.DOTALL)
IMAGES = "images"


def fill_document(document: Path, results: Path) -> None:
    """Make every marked table of a Markdown file anew from a folder of results."""
    try:
        text = document.read_text(encoding="utf-8")
    except OSError as err:
        raise ConfigError(f"--document {document} cannot be read ({err.strerror}); name a Markdown file") from err
    drawn = PLOTTED.sub(lambda found: _plot(found, results, document.parent / IMAGES), text)
    replace_file(document, filled(drawn, results).encode())


def filled(text: str, results: Path) -> str:
    """The text with every marked table made anew."""
    return MARKED.sub(lambda found: _table(found, results), text)


def _plot(found: re.Match[str], results: Path, images: Path) -> str:
    """The plots of a table, as files beside the document and links to them."""
    file, title = found.groups()
    rows = _rows(_result(results / file), title, file)
    images.mkdir(parents=True, exist_ok=True)
    links = []
    for number, picture in enumerate(pictures(title, rows), 1):
        name = f"{Path(file).stem}-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}-{number}.png"
        (images / name).write_bytes(picture.png)
        links.append(f"![{picture.title}]({IMAGES}/{name})")
    if not links:
        raise ConfigError(f"the table {title!r} of {file} has nothing to draw; show it as a table")
    return f"<!-- plot {file} | {title} -->\n" + "\n".join(links) + "\n<!-- end -->"


def _result(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ConfigError(f"there is no result {path}; make it with `fedwright bench {path.stem} --json {path}`")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _table(found: re.Match[str], results: Path) -> str:
    file, title, columns = found.groups()
    result = _result(results / file)
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
