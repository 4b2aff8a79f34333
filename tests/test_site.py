"""The site builds without a warning, asks no other host for anything, and has every public name."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import fedwright
from fedwright.cli.command_tree import commands
from fedwright.cli.explanations import EXPLANATIONS, explain
from fedwright.protocol import errors
from fedwright.server_runtime.config import SECTIONS
from fedwright.server_runtime.edge.metrics import EdgeFigures, EdgeSnapshot
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.server_runtime.watch.metrics import RunFigures
from helpers.browser import browser_page, chromium, mistakes
from helpers.scrape import memory_link
from helpers.tools import REPO
from site_pages.methods import NOTES
from site_pages.metrics import metrics_page

# What a browser fetches by itself; a link to another host is not among them.
FETCHED = re.compile(r"<(?:script|link|img|iframe|source|video)\b[^>]*?\b(?:src|href)=\"?(?P<url>[^\"\s>]+)")
LEADS = re.compile(r"<[a-z]+\b[^>]*?\b(?:src|href)=\"?([^\"\s>]+)")
# Wide tables, equations, code, links in code.
SEEN = ("results.html", "methods/hasa.html", "how-to/tasks.html", "how-to/page.html")
WITH_BROWSER = pytest.mark.skipif(
    chromium() is None and not os.environ.get("CI"), reason="needs chromium; run scripts/setup"
)
IN_STYLES = re.compile(r"(?:url\(|@import )[\"']?(https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    paths = os.pathsep.join([str(REPO), str(REPO / "scripts")])
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def page(site: Path, name: str) -> str:
    return (site / name).read_text()


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    fetched = {found["url"] for file in pages for found in FETCHED.finditer(file.read_text())}
    styles = [file.name for file in site.rglob("*.css") if IN_STYLES.search(file.read_text())]

    assert len(pages) > 70
    assert len(fetched) > 10
    assert [url for url in fetched if re.match(r"(https?:)?//", url)] == []
    assert styles == []


def test_nothing_that_a_page_shows_or_leads_to_is_missing(site: Path) -> None:
    missing = set()
    for file in site.rglob("*.html"):
        for url in LEADS.findall(file.read_text()):
            parts = urlsplit(html.unescape(url))
            path = unquote(parts.path)
            goal = site / path.lstrip("/") if path.startswith("/") else file.parent / path
            if not (parts.scheme or parts.netloc or goal.exists()):
                missing.add((file.relative_to(site).as_posix(), url))

    assert missing == set()


def test_search_has_its_index_without_a_server(site: Path) -> None:
    assert "wheelhouse" in page(site, "search/search_index.js")
    assert "iframe-worker.js" in page(site, "index.html")


def test_every_public_name_is_on_its_page_with_what_it_does(site: Path) -> None:
    reference = page(site, "reference/python.html")

    assert [name for name in fedwright.__all__ if f'id="{fedwright._PLACES[name]}.{name}"' not in reference] == []
    assert "Train a fleet of simulated devices to its end." in reference


def test_every_command_and_setting_is_in_the_reference(site: Path) -> None:
    listed, settings = page(site, "reference/commands.html"), page(site, "reference/config.html")
    known = ["-".join(("fedwright", *command.words)) for command in commands()]

    assert [name for name in known if f'id="{name}"' not in listed] == []
    assert [name for name in SECTIONS if f'id="{name}"' not in settings] == []


def test_every_method_has_a_page_with_equations(site: Path) -> None:
    pages = {name: page(site, f"methods/{name}.html") for name in METHODS}

    assert [name for name, text in pages.items() if "<math" not in text or "When to use it" not in text] == []
    assert sorted(re.findall(r"^\[([\w-]+)\]$", NOTES.read_text(), flags=re.MULTILINE)) == sorted(METHODS)


def test_every_error_is_explained(site: Path) -> None:
    listed = page(site, "reference/errors.html")
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]

    assert [kind.__name__ for kind in kinds if kind.__name__ not in EXPLANATIONS] == []
    assert [code for kind in kinds if f'id="{(code := explain(kind).code).lower()}"' not in listed] == []
    assert len({known.code for known in EXPLANATIONS.values()}) == len(EXPLANATIONS)


def test_every_figure_that_is_served_or_asked_for_is_in_the_list(tmp_path: Path) -> None:
    listed = set(re.findall(r"^\| `(\w+)` \| (?:gauge|counter|histogram) \|", metrics_page(), flags=re.MULTILINE))
    link = memory_link()
    run, edge = RunFigures(tmp_path, link=link), EdgeFigures(EdgeSnapshot, tmp_path, link, link)
    served = {figure.name for figure in (*run.collect(), *edge.collect())}
    files = [path for path in (REPO / "deploy").rglob("*") if path.is_file()]
    asked = {name for file in files for name in re.findall(r"fedwright_\w+", file.read_text())}

    assert len(served) > 25
    assert served - listed == set()
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} - listed == set()


@WITH_BROWSER
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)], ids=["desk, light", "phone, dark"])
def test_nobody_is_shut_out_of_a_page(site: Path, width: int, dark: bool) -> None:
    with browser_page(width=width, dark=dark) as page:
        found = {}
        for name in SEEN:
            page.goto((site / name).as_uri())
            found[name] = mistakes(page)

    assert found == {key: [] for key in SEEN}


@WITH_BROWSER
def test_a_wide_table_is_moved_by_keyboard(site: Path) -> None:
    with browser_page(width=400) as page:
        page.goto((site / "results.html").as_uri())
        table = page.locator(".md-typeset__scrollwrap[tabindex]").first
        table.focus()
        page.keyboard.press("ArrowRight")

        page.wait_for_function("table => table.scrollLeft > 0", arg=table.element_handle())
