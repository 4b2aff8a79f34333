"""`fedwright bench report`: results as one Markdown file and one page that needs nothing else."""

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.plots import Picture, pictures
from fedwright.benchmarks.harness.tables import html_table, is_table, markdown, signs
from fedwright.protocol.errors import ConfigError

# Where a result was read: pictures that its suite drew lie beside it.
FOLDER = "folder"
NEEDED = ("suite", "command", "versions", "machine", "tables", "checks")


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


def write_report(
    results: Sequence[Mapping[str, Any]], folder: Path, *, before: Sequence[Mapping[str, Any]] = ()
) -> Written:
    """report.md with its plots beside it, and report.html with everything inside; before: what to compare with."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    compared = compare(results, before)
    lines, parts = [_summary(results, compared)], [_summary_html(results, compared)]
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
    style = resources.files("fedwright.benchmarks").joinpath("harness", "report.css").read_text(encoding="utf-8")
    head = (
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Measured with Fedwright</title>"
        f"<meta name=viewport content='width=device-width, initial-scale=1'><style>{style}</style></head>"
    )
    body = f"<body>{_navigation(results)}<main>{''.join(parts)}</main></body></html>"
    written.page.write_text(head + body, encoding="utf-8")
    return written


def compare(results: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Checks whose value or outcome is another than in earlier results of the same suite."""
    known = {(one["suite"], check["name"]): (check, one) for one in before for check in one["checks"]}
    rows = []
    for result in results:
        for check in result["checks"]:
            then, one = known.get((result["suite"], check["name"]), (None, None))
            if then is None or one is None or (then["value"], then["holds"]) == (check["value"], check["holds"]):
                continue
            rows.append(
                {
                    "suite and check": f"{result['suite']}: {check['name']}",
                    "before": then["value"],
                    "now": check["value"],
                    "target": check["target"],
                    "held": then["holds"],
                    "holds": check["holds"],
                    "measured before": one.get("date", "-"),
                }
            )
    return rows


def _promises(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Every figure that is promised, with its suite; those that are only reported promise nothing."""
    found = [(str(result["suite"]), check) for result in results for check in result["checks"]]
    return [(suite, check) for suite, check in found if check["target"] != "reported"]


def _broken(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"suite and check": f"{suite}: {check['name']}", "value": check["value"], "target": check["target"]}
        for suite, check in _promises(results)
        if not check["holds"]
    ]


def _summary(results: Sequence[Mapping[str, Any]], compared: Sequence[Mapping[str, Any]]) -> str:
    lines = ["# Measured with Fedwright\n", f"{_score(results)}\n"]
    for title, rows in (("What does not hold", _broken(results)), ("Other than before", compared)):
        lines += [f"## {title}\n", markdown(rows)] if rows else []
    return "\n".join(lines)


def _score(results: Sequence[Mapping[str, Any]]) -> str:
    promised = _promises(results)
    held = sum(bool(check["holds"]) for _, check in promised)
    return f"{held} of {len(promised)} promises hold, in {len(results)} suites."


def _navigation(results: Sequence[Mapping[str, Any]]) -> str:
    links = ["<a href='#summary'><b>Summary</b></a>"]
    for result in results:
        promised = _promises([result])
        held = sum(bool(check["holds"]) for _, check in promised)
        kind = "good" if held == len(promised) else "bad"
        name = html.escape(result["suite"])
        score = f"<span class={kind}>{held}/{len(promised)}</span>" if promised else ""
        links.append(f"<a href='#{_slug(result['suite'])}'><span>{name}</span>{score}</a>")
    return f"<nav aria-label='Suites'>{''.join(links)}</nav>"


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
    lines += [f"![{name}](plots/{name})\n" for name in plots]
    if result["checks"]:
        lines += ["**checks**\n", markdown(checks_of(result))]
    for title, rows in _tables(result):
        lines += [f"**{title}**\n", markdown(rows)]
        against = signs(rows)
        if against:
            lines += ["**beside the paper**\n", markdown(against)]
    return "\n".join(lines)


def _section_html(result: Mapping[str, Any], drawn: Sequence[Picture]) -> str:
    """Plots, then what was promised, then the tables behind them, which open when asked for."""
    parts = [f"<section id='{_slug(result['suite'])}'><h2>{html.escape(result['suite'])}</h2>"]
    if drawn:
        parts.append(f"<div class=plots>{''.join(_figure(picture) for picture in drawn)}</div>")
    if result["checks"]:
        parts.append(f"<h3>Promised and measured</h3>{html_table(checks_of(result))}")
    for title, rows in _tables(result):
        against = signs(rows)
        beside = f"<h4>beside the paper</h4>{html_table(against)}" if against else ""
        parts.append(f"<details><summary>{html.escape(title)}</summary>{html_table(rows)}{beside}</details>")
    about = "<br>".join(html.escape(line) for line in _about(result))
    parts.append(f"<p class=meta><code>{html.escape(result['command'])}</code><br>{about}</p></section>")
    return "".join(parts)


def _figure(picture: Picture) -> str:
    data, title = base64.b64encode(picture.png).decode(), html.escape(picture.title, quote=True)
    return f"<figure><img alt='{title}' src='data:image/png;base64,{data}'></figure>"


def _summary_html(results: Sequence[Mapping[str, Any]], compared: Sequence[Mapping[str, Any]]) -> str:
    broken = _broken(results)
    kind = "bad" if broken else "good"
    parts = ["<div id=summary><h1>Measured with Fedwright</h1>", f"<p class='big {kind}'>{_score(results)}</p>"]
    for title, rows in (("What does not hold", broken), ("Other than in the results before", compared)):
        if rows:
            parts.append(f"<h2>{title}</h2>{html_table(rows)}")
    return "".join([*parts, "</div>"])


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
