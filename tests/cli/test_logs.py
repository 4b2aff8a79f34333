"""The options of the log, and its lines for programs."""

import argparse
import json
import logging
import sys
from pathlib import Path

import pytest

from fedwright.cli import main as cli
from fedwright.cli.logs import JsonLines, add_log_options
from helpers.simulation import make_config
from helpers.tools import run

LONG = [["server", "run"], ["server", "resume"], ["server", "edge"], ["device", "run"], ["simulate"]]
SCRIPT = """
import argparse, logging, sys
from pathlib import Path
from fedwright.cli.logs import add_log_options, start_logging
parser = argparse.ArgumentParser()
add_log_options(parser)
file, *words = sys.argv[1:]
sys.stderr = sys.stdout
start_logging(parser.parse_args(words), file=Path(file) if file else None)
log = logging.getLogger("fedwright.some")
log.debug("small"), log.info("usual"), log.warning("strange"), log.error("wrong")
"""


def logged(text: str, *values: object, extra: dict[str, object] | None = None, device: str = "") -> dict[str, object]:
    """What a program reads of one record."""
    record = logging.getLogger("fedwright.some").makeRecord(
        "fedwright.some", logging.WARNING, "file.py", 1, text, values, None, extra=extra
    )
    read = json.loads(JsonLines(device).format(record))
    assert isinstance(read, dict)
    return read


def words(*options: str, file: Path | None = None) -> list[str]:
    """The last word of each line on standard error."""
    said = run([sys.executable, "-c", SCRIPT, "" if file is None else str(file), *options])
    return [line.split()[-1] for line in said.splitlines()]


def test_a_line_names_device_and_round_where_its_text_does() -> None:
    read = logged("device %s round %d: update rejected: %s", "pi-07", 3, "norm %")

    assert read.pop("time")
    assert read == {
        "level": "warning",
        "logger": "fedwright.some",
        "message": "device pi-07 round 3: update rejected: norm %",
        "device": "pi-07",
        "round": 3,
    }


def test_what_the_caller_says_counts_before_the_text() -> None:
    assert logged("it is 100%% sure of %s", "x", extra={"device": "pi"})["device"] == "pi"
    assert logged("round %d: task refused", 4, device="nano").items() >= {"device": "nano", "round": 4}.items()
    assert {"device", "round"}.isdisjoint(logged("nothing is known"))


def test_an_error_brings_its_trace() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())

    assert "ValueError: broken" in json.loads(JsonLines().format(record))["error"]


@pytest.mark.parametrize(
    ("options", "heard"),
    [
        ([], ["usual", "strange", "wrong"]),
        (["-v"], ["small", "usual", "strange", "wrong"]),
        (["--verbose"], ["small", "usual", "strange", "wrong"]),
        (["--log-level", "warning"], ["strange", "wrong"]),
        (["--log-level", "error"], ["wrong"]),
    ],
    ids=lambda value: " ".join(value) or "default",
)
def test_the_level_decides_what_is_logged(options: list[str], heard: list[str]) -> None:
    assert words(*options) == heard


def test_with_a_file_the_screen_is_left_in_peace_unless_asked(tmp_path: Path) -> None:
    file = tmp_path / "server.log"

    assert words(file=file) == []
    assert [line.split()[-1] for line in file.read_text().splitlines()] == ["usual", "strange", "wrong"]
    assert words("-v", file=file) == ["small", "usual", "strange", "wrong"]


@pytest.mark.parametrize("command", LONG, ids=" ".join)
def test_every_command_that_works_for_long_has_the_options(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command, "--help"])

    out = capsys.readouterr().out
    assert all(option in out for option in ("-v, --verbose", "--log-level LEVEL", "--log-json"))


def test_an_unknown_level_is_refused() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_log_options(parser)

    with pytest.raises(argparse.ArgumentError, match=r"debug.*info.*warning.*error"):
        parser.parse_args(["--log-level", "loud"])


def test_a_simulation_with_log_json_says_nothing_else(tmp_path: Path) -> None:
    _, text = make_config(tmp_path, rounds=1, model={"model": "mlp"}, simulate={"devices": 2, "rows": 60, "least": 2})
    (tmp_path / "run.toml").write_text(text)
    command = "import sys; sys.stdout = open(sys.argv.pop(1), 'w'); sys.stderr = sys.__stdout__; "
    command += "from fedwright.cli.main import main; sys.exit(main(sys.argv[1:]))"

    said = run(
        [sys.executable, "-c", command, str(tmp_path / "out"), "simulate", str(tmp_path / "run.toml"), "--log-json"]
    )

    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["round"] for line in lines if line["message"].startswith("round 1 closed")] == [1]
    assert (tmp_path / "run.simulated" / "simulate.log").read_text().splitlines() == said.splitlines()
