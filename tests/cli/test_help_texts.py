"""`explain`, `completion` and `man`: what is made from errors and commands."""

import re
import subprocess
from pathlib import Path

import pytest

from fedwright.cli.completion import script_for
from fedwright.cli.explanations import explain
from fedwright.cli.main import main
from fedwright.cli.manual import manual_pages
from fedwright.protocol.errors import ConfigError, OverBudget
from helpers.tools import require_tool


def test_an_error_ends_with_a_code_that_explain_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "nothing"]) == 1
    [code] = re.findall(r"\[(FW\d+)\]$", capsys.readouterr().err.strip())
    assert main(["explain", code]) == 0

    said = capsys.readouterr().out
    assert said.startswith(f"{code} (ConfigError): a setting is unknown")
    assert "what helps:" in said


def test_all_codes_and_a_wrong_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert "FW401  OverBudget" in capsys.readouterr().out
    assert main(["explain", "FW999"]) == 1
    assert "there is no error 'FW999'" in capsys.readouterr().err


def test_a_kind_of_error_without_an_entry_is_explained_by_the_one_above() -> None:
    class Odd(ConfigError):
        """Not listed."""

    assert explain(Odd("x")).code == explain(ConfigError).code
    assert explain(OverBudget(2, 1)).code == "FW401"
    assert explain(FileNotFoundError("x")).code == explain(OSError).code


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("fedwright server re", "resume renew revoke"),
        ("fedwright device run --br", "--broker"),
        ("fedwright completion z", "zsh"),
        ("fedwright --ver", "--version"),
    ],
)
def test_bash_completes(typed: str, completed: str, tmp_path: Path) -> None:
    words = typed.split(" ")
    script = (
        script_for("bash") + f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _fedwright; echo ${{COMPREPLY[@]}}"
    )

    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == completed


def test_other_shells_get_scripts_too() -> None:
    assert script_for("zsh").startswith("#compdef fedwright\n")
    assert (
        "complete -c fedwright -n '__fish_seen_subcommand_from server; and __fish_seen_subcommand_from run' -l rounds"
        in (script_for("fish"))
    )


def test_manual_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man", str(tmp_path)]) == 0

    pages = manual_pages()
    assert {file.name for file in tmp_path.iterdir()} == pages.keys()
    page = pages["fedwright-server-run.1"]
    assert page.startswith('.TH "FEDWRIGHT-SERVER-RUN" "1"')
    assert ".B \\-\\-rounds N" in page
    assert "fedwright\\-server\\-resume(1)" in page
    assert f"wrote {len(pages)} pages" in capsys.readouterr().out


def test_man_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    (tmp_path / "page.1").write_text(manual_pages()["fedwright-device-run.1"])

    done = subprocess.run(
        [require_tool("man"), "--warnings", "-l", str(tmp_path / "page.1")], capture_output=True, text=True, check=True
    )

    assert "EXIT STATUS" in done.stdout
    assert done.stderr == ""
