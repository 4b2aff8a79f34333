"""Tables in documents are those of the committed results, and each result says where it comes from."""

import json
import re
from pathlib import Path

import pytest

from fedwright.benchmarks.harness.document_tables import MARKED, filled
from fedwright.benchmarks.harness.report import read_results
from fedwright.cli.bench import SUITES
from fedwright.cli.main import main
from fedwright.protocol.errors import ConfigError
from helpers.tools import REPO

RESULTS = REPO / "benchmarks/results"
DOCUMENTS = {"README.md": 2, "docs/results.md": 7}


@pytest.mark.parametrize(("name", "least"), DOCUMENTS.items(), ids=DOCUMENTS)
def test_a_document_shows_the_committed_results(name: str, least: int) -> None:
    text = (REPO / name).read_text()
    assert len(MARKED.findall(text)) >= least
    assert filled(text, RESULTS) == text


def test_the_command_fills_a_document_and_names_one_that_is_not_there(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text("<!-- peers.json | checks | * -->\nold\n<!-- end -->\n")

    assert main(["bench", "report", str(RESULTS), "--document", str(document)]) == 0

    assert "| seconds per round" in document.read_text()
    assert main(["bench", "report", str(RESULTS), "--document", str(tmp_path / "none.md")]) == 1


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_a_result_says_how_to_get_it_again(file: Path) -> None:
    (result,) = read_results([file])

    assert result["suite"] == file.stem
    assert result["suite"] in SUITES
    assert re.match(rf"fedwright bench {file.stem}\b", result["command"])
    assert re.match(r"20\d\d-\d\d-\d\d$", result["date"])
    assert result["checks"]


def test_a_changed_number_is_put_right(tmp_path: Path) -> None:
    result = {
        "command": "fedwright bench tried",
        "date": "2026-01-02",
        "machine": "here",
        "tables": {"by method, in percent": [{"method": "a", "mean": 1.5, "other": 2}]},
        "checks": [{"name": "n", "value": 1.0, "target": "> 0", "holds": True}],
    }
    (tmp_path / "tried.json").write_text(json.dumps(result))
    text = "before\n<!-- tried.json | by method | method, mean -->\nold\n<!-- end -->\nafter"

    found = filled(text, tmp_path)

    assert "| a | 1.50 |" in found
    assert "`fedwright bench tried` on 2026-01-02, here" in found
    assert found.startswith("before\n")
    assert found.endswith("\nafter")
    assert filled(found, tmp_path) == found
    assert "| n | 1.00 | > 0 | yes |" in filled("<!-- tried.json | checks | * -->\n<!-- end -->", tmp_path)


def test_a_missing_result_or_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no result .*gone\.json; make it with `fedwright bench gone"):
        filled("<!-- gone.json | a | * -->\n<!-- end -->", tmp_path)
    (tmp_path / "there.json").write_text('{"tables": {"b": []}}')
    with pytest.raises(ConfigError, match=r"there\.json has no table 'a'; it has b"):
        filled("<!-- there.json | a | * -->\n<!-- end -->", tmp_path)
