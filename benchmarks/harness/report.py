"""`fedwright bench report`: results as one Markdown file and one page that needs nothing else."""

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.plots import Picture, pictures
from fedwright.benchmarks.harness.tables import html_table, is_table, markdown, signs
from fedwright.protocol.errors import ConfigError

# Where a result was read: pictures that its suite drew lie beside it.
FOLDER = "folder"
NEEDED = ("suite", "command", "versions", "machine", "tables", "checks")
STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-size: 13px; display: block; overflow-x: auto; }
th, td { border: 1px solid #ccc; padding: .2rem .5rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; } code { background: #f3f3f3; padding: 0 .2rem; } .meta { color: #666; font-size: 13px; }
"""


@dataclass(frozen=True)
class Written:
    """The files of a report."""

    markdown: Path
    page: Path


def read_results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Results of `fedwright bench --json`, from files and from folders of such files."""
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files:
        named = ", ".join(str(path) for path in paths)
        raise ConfigError(f"there are no results in {named}; make some with `fedwright bench SUITE --json FILE`")
    found: list[dict[str, Any]] = []
    for file in files:
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as err:
            raise ConfigError(f"{file} cannot be read as a result ({err}); name a file that --json wrote") from err
        for result in data if isinstance(data, list) else [data]:
            if not isinstance(result, dict) or any(key not in result for key in NEEDED):
                raise ConfigError(f"{file} is not the result of a suite; name a file that `fedwright bench` wrote")
            found.append({**result, FOLDER: file.parent})
    return found


def write_report(results: Sequence[Mapping[str, Any]], folder: Path) -> Written:
    """report.md with its plots beside it, and report.html with everything inside."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    lines, parts = ["# Measured with Fedwright\n"], [_summary_html(results)]
    for result in results:
        drawn: list[tuple[str, Picture]] = []
        for number, (title, rows) in enumerate(_tables(result)):
            for picture in pictures(title, rows):
                name = f"{result['suite']}-{number}-{_slug(picture.title)}.png"
                (folder / "plots" / name).write_bytes(picture.png)
                drawn.append((name, picture))
        for picture in _beside(result):
            (folder / "plots" / picture.title).write_bytes(picture.png)
            drawn.append((picture.title, picture))
        lines.append(_section(result, [name for name, _ in drawn]))
        parts.append(_section_html(result, [picture for _, picture in drawn]))
    written = Written(folder / "report.md", folder / "report.html")
    written.markdown.write_text("\n".join(lines), encoding="utf-8")
    page = (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>Measured with Fedwright</title><style>{STYLE}"
    )
    written.page.write_text(f"{page}</style></head><body>{''.join(parts)}</body></html>", encoding="utf-8")
    return written


def _beside(result: Mapping[str, Any]) -> list[Picture]:
    """What the suite itself has drawn; names with a folder in them are not ours."""
    names = [str(name) for name in result.get("pictures") or [] if Path(str(name)).name == name]
    files = [Path(result.get(FOLDER, ".")) / name for name in names]
    return [Picture(file.name, file.read_bytes()) for file in files if file.is_file()]


def checks_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The checks of a result as rows of a table."""
    names = ("name", "value", "target", "holds")
    return [{name: check[name] for name in names} for check in result["checks"]]


def _tables(result: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    return [(title, rows) for title, rows in result["tables"].items() if is_table(rows)]


def _about(result: Mapping[str, Any]) -> Iterable[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    yield f"{result.get('date', 'no date')}, {result['machine']}"
    yield versions
    seeds = result.get("seeds") or []
    if seeds:
        yield f"seeds {', '.join(str(seed) for seed in seeds)}"
    if result.get("limits"):
        yield f"limits: {result['limits']}"
    yield from result.get("notes") or []


def _section(result: Mapping[str, Any], plots: Sequence[str]) -> str:
    lines = [f"## {result['suite']}\n", f"`{result['command']}`\n", *(f"{line}  " for line in _about(result)), ""]
    for title, rows in _tables(result):
        lines += [f"**{title}**\n", markdown(rows)]
        against = signs(rows)
        if against:
            lines += ["**beside the paper**\n", markdown(against)]
    lines += [f"![{name}](plots/{name})\n" for name in plots]
    if result["checks"]:
        lines += ["**checks**\n", markdown(checks_of(result))]
    return "\n".join(lines)


def _section_html(result: Mapping[str, Any], drawn: Sequence[Picture]) -> str:
    parts = [f"<h2 id='{_slug(result['suite'])}'>{html.escape(result['suite'])}</h2>"]
    parts.append(f"<p><code>{html.escape(result['command'])}</code></p>")
    parts.append(f"<p class=meta>{'<br>'.join(html.escape(line) for line in _about(result))}</p>")
    for title, rows in _tables(result):
        parts.append(f"<h3>{html.escape(title)}</h3>{html_table(rows)}")
        against = signs(rows)
        if against:
            parts.append(f"<h4>beside the paper</h4>{html_table(against)}")
    for picture in drawn:
        data = base64.b64encode(picture.png).decode()
        parts.append(f"<p><img alt='{html.escape(picture.title, quote=True)}' src='data:image/png;base64,{data}'></p>")
    if result["checks"]:
        parts.append(f"<h3>checks</h3>{html_table(checks_of(result))}")
    return "".join(parts)


def _summary_html(results: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        {
            "suite": result["suite"],
            "date": result.get("date", "-"),
            "checks": len(result["checks"]),
            "hold": sum(bool(check["holds"]) for check in result["checks"]),
        }
        for result in results
    ]
    return f"<h1>Measured with Fedwright</h1>{html_table(rows)}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
