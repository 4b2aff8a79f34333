"""Results become a Markdown file and a page of its own, with plots read off the tables."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from fedwright.benchmarks.harness.document_tables import fill_document
from fedwright.benchmarks.harness.plots import pictures
from fedwright.benchmarks.harness.report import read_results, write_report
from fedwright.benchmarks.harness.tables import markdown, signs
from fedwright.cli.main import main
from fedwright.protocol.errors import ConfigError
from helpers.tools import require_tool, run

PNG = b"\x89PNG\r\n\x1a\n"


def result(**changes: Any) -> dict[str, Any]:
    """A result as a suite writes it."""
    made: dict[str, Any] = {
        "suite": "tried",
        "command": "fedwright bench tried",
        "date": "2026-01-02",
        "versions": {"fedwright": "1.0"},
        "machine": "a machine",
        "seeds": [1, 2],
        "tables": {
            "by method": [
                {"method": "one", "mean": 80.0, "paper mean": 70.0, "0.25": 60.0, "1": 81.0, "upload kB": 9.0},
                {"method": "<two>", "mean": 75.0, "paper mean": 72.0, "0.25": 50.0, "1": 76.0, "upload kB": 5.0},
            ],
            "by round": [{"round": 1, "one": 50.0, "<two>": 40.0}, {"round": 2, "one": 80.0, "<two>": 75.0}],
            "a number alone": 3,
        },
        "checks": [{"name": "one - two", "value": 5.0, "target": "> 0", "holds": True}],
    }
    return made | changes


def test_a_report_has_every_table_check_and_plot(tmp_path: Path) -> None:
    written = write_report([result()], tmp_path)
    text, page = written.markdown.read_text(), written.page.read_text()

    assert "| one | 80.00 | 70.00 | 60.00 | 81.00 | 9.00 |" in text
    assert "| one - two | 5.00 | > 0 | yes |" in text
    assert "2026-01-02, a machine" in text
    assert "seeds 1, 2" in page
    shown = re.findall(r"src='data:image/png;base64,([^']+)'", page)
    assert len(shown) == 3
    assert all(base64.b64decode(data).startswith(PNG) for data in shown)
    assert len(re.findall(r"!\[.*\]\(plots/(.*)\)", text)) == len(list((tmp_path / "plots").iterdir())) == 3


def test_a_page_takes_nothing_from_elsewhere_and_no_markup_from_results(tmp_path: Path) -> None:
    page = write_report([result(notes=["<script>alert(1)</script>"])], tmp_path).page.read_text()

    assert "<script" not in page
    assert "&lt;two&gt;" in page
    assert {start for start in re.findall(r"(?:src|href)=(.{6})", page)} == {"'data:", "'#summ", "'#trie"}


def test_what_was_promised_comes_first_and_can_be_gone_to(tmp_path: Path) -> None:
    missed = [{"name": "speed", "value": 3.0, "target": "<= 2", "holds": False}]
    told = [{"name": "size", "value": 3.0, "target": "reported", "holds": True}]
    page = write_report([result(), result(suite="slow", checks=missed + told)], tmp_path).page.read_text()

    assert "1 of 2 promises hold, in 2 suites." in page
    assert page.index("What does not hold") < page.index("slow: speed") < page.index("<section id='tried'")
    assert "<a href='#slow'><span>slow</span><span class=bad>0/1</span></a>" in page
    section = page[page.index("<section id='tried'") : page.index("<section id='slow'")]
    assert section.index("<img") < section.index("Promised and measured") < section.index("<details>")


def test_a_report_says_what_is_other_than_before(tmp_path: Path) -> None:
    before = result(checks=[{"name": "one - two", "value": 7.0, "target": "> 0", "holds": True}], date="2025-12-31")

    same = write_report([result()], tmp_path / "same", before=[result()])
    other = write_report([result()], tmp_path / "other", before=[before, result(suite="gone")])

    assert "Other than" not in same.page.read_text()
    assert "| tried: one - two | 7.00 | 5.00 | > 0 | yes | yes | 2025-12-31 |" in other.markdown.read_text()


def test_a_document_gets_its_plots_beside_it(tmp_path: Path) -> None:
    (tmp_path / "tried.json").write_text(json.dumps(result()))
    document = tmp_path / "docs" / "page.md"
    document.parent.mkdir()
    document.write_text("Before.\n<!-- plot tried.json | by round -->\n<!-- end -->\nAfter.\n")

    fill_document(document, tmp_path)

    [name] = re.findall(r"!\[by round\]\(images/(.*)\)", document.read_text())
    assert (document.parent / "images" / name).read_bytes().startswith(PNG)


def test_a_table_that_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    (tmp_path / "tried.json").write_text(json.dumps(result(tables={"words": [{"a": "x"}]})))
    (tmp_path / "page.md").write_text("<!-- plot tried.json | words -->\n<!-- end -->\n")

    with pytest.raises(ConfigError, match="has nothing to draw"):
        fill_document(tmp_path / "page.md", tmp_path)


def test_the_first_row_is_compared_with_the_paper() -> None:
    found = signs(result()["tables"]["by method"])

    assert found == [{"difference": "one - <two>, mean", "here": 5.0, "paper": -2.0, "same sign": False}]


def test_the_first_row_that_a_paper_has_is_compared_with_the_others() -> None:
    rows = [
        {"method": "alone", "mean": 60.0, "paper mean": None},
        {"method": "ours", "mean": 80.0, "paper mean": 70.0},
        {"method": "theirs", "mean": 85.0, "paper mean": 65.0},
    ]

    assert [(row["difference"], row["same sign"]) for row in signs(rows)] == [("ours - theirs, mean", False)]


def test_a_table_with_several_rows_per_round_is_not_drawn_as_a_curve() -> None:
    rows = [{"round": number, "device": device, "s": 1.0} for number in (1, 2) for device in ("a", "b")]

    assert pictures("devices", rows) == []


def test_pictures_that_a_suite_drew_are_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "drawn.png").write_bytes(PNG + b"drawn")
    (tmp_path / "tried.json").write_text(json.dumps(result(tables={}, pictures=["drawn.png", "../secret.png"])))

    written = write_report(read_results([tmp_path / "tried.json"]), tmp_path / "report")

    assert (tmp_path / "report" / "plots" / "drawn.png").read_bytes() == PNG + b"drawn"
    assert base64.b64encode(PNG + b"drawn").decode() in written.page.read_text()
    assert "secret" not in written.page.read_text()


def test_rows_without_a_paper_are_not_compared() -> None:
    assert signs([{"method": "a", "mean": 1.0}, {"method": "b", "mean": 2.0}]) == []
    assert signs([{"m": "a", "x": 1.0, "paper x": None}, {"m": "b", "x": 2.0, "paper x": 1.0}]) == []


@pytest.mark.parametrize(
    "rows",
    [
        [{"devices": 10, "CPU s": 0.1}, {"devices": 100, "CPU s": 1.0}],
        [{"device": "a", "s per round": 1.0, "peak MB": 3.0}, {"device": "b", "s per round": 2.0, "peak MB": 3.0}],
        [{"round": 1, "a": None}, {"round": 2, "a": None}],
        [{"model": name, "peak MB": 10.0, "predicted / peak": 1.1} for name in ("a", "b")],
        [{"round": number, "device": name, "s": 2.0, "training s": 1.0} for number in (1, 2) for name in ("a", "b")],
    ],
)
def test_other_tables_are_drawn_too(rows: list[dict[str, Any]]) -> None:
    drawn = pictures("t", rows)

    assert [picture.png[:8] for picture in drawn] == [PNG]


def test_a_pipe_in_a_cell_does_not_end_it() -> None:
    assert markdown([{"a": "x|y"}]) == "| a |\n| --- |\n| x\\|y |\n"


@pytest.mark.parametrize("text", ["{", "[1]", '{"suite": "x"}'])
def test_what_is_not_a_result_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)

    with pytest.raises(ConfigError, match=r"odd\.json"):
        read_results([tmp_path])


def test_a_folder_without_results_says_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no results in .*fedwright bench SUITE --json"):
        read_results([tmp_path])


def test_the_command_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "tried.json").write_text(json.dumps(result()))

    assert main(["bench", "report", str(tmp_path / "results"), "--out", str(tmp_path / "out")]) == 0

    assert capsys.readouterr().out.split() == [str(tmp_path / "out" / name) for name in ("report.md", "report.html")]
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.slow
def test_a_browser_shows_the_page_and_its_plots(tmp_path: Path) -> None:
    page = write_report([result()], tmp_path).page
    shot = tmp_path / "shot.png"
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    command = [require_tool("chromium"), "--headless", "--no-sandbox", "--disable-gpu", *quiet]
    command += [f"--user-data-dir={tmp_path / 'browser'}", "--window-size=1200,2600"]

    dom = run([*command, "--dump-dom", page.as_uri()])
    run([*command, f"--screenshot={shot}", page.as_uri()])

    assert dom.count("<table>") == 4
    pixels = matplotlib.image.imread(shot)[..., :3]
    # The first colour of a plot's lines: a picture that did not load has none of it.
    blue = np.abs(pixels - np.array([0x1F, 0x77, 0xB4]) / 255).max(axis=2) < 0.02
    assert blue.sum() > 150
