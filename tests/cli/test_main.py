"""The command itself: help, exit codes, one sentence for an error, and nothing imported that was not asked for."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from fedwright import __version__
from fedwright.cli import main as cli
from fedwright.protocol.errors import FedwrightError

COMMANDS = [name for group in cli.GROUPS for name in group.commands]


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command that ends with this error."""

    def run(args: argparse.Namespace) -> int:
        raise error

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=run)
    monkeypatch.setattr(cli, "build_parser", lambda command: parser)
    return cli.main([])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fedwright {__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])

    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in out] == []


def with_all_below(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser and those of all commands below it."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    children = inner[0].choices.values() if inner else ()
    return [parser, *(below for child in children for below in with_all_below(child))]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    whole = cli.build_parser(command)
    chosen = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction)).choices[
        command
    ]

    parsers = with_all_below(chosen)

    assert [parser.prog for parser in parsers if f" {parser.prog}" not in (parser.epilog or "")] == []
    assert [parser.prog for parser in parsers[1:] or parsers if parser.get_default("run") is None] == []


def test_no_command_and_an_unknown_command_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["fly"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
    assert "there is no 'fly'; " in capsys.readouterr().err


def test_our_errors_end_in_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail_with(FedwrightError("the broker is gone; start it"), monkeypatch) == 1
    assert capsys.readouterr().err == "fedwright: the broker is gone; start it [FW000]\n"


def test_ctrl_c_stops_cleanly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail_with(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "fedwright: stopped\n"


def test_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(ModuleNotFoundError("no", name="torch.nn"), monkeypatch) == 1
    assert "needs torch; install it with pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device", "/data/x"), "/data/x: No space left on device; free some space there;"),
        (PermissionError(13, "Permission denied", "run.toml"), "run.toml: Permission denied; give this user the right"),
        (TimeoutError("timed out"), "timed out; mend that"),
    ],
    ids=["full disk", "not allowed", "no number"],
)
def test_an_error_of_the_system_ends_in_one_sentence(
    error: OSError, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail_with(error, monkeypatch) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"fedwright: {sentence}")
    assert said.count("\n") == 1


WRITES = [["simulate", "c"], ["bench", "--list"], ["demo"], ["server", "run", "c"], ["server", "resume", "r"]]


@pytest.mark.parametrize("command", WRITES, ids=" ".join)
def test_a_result_that_cannot_be_written_is_said_at_the_start(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--json", str(tmp_path / "file" / "deep" / "result.json")])

    assert ended.value.code == 2
    assert "cannot be made" in capsys.readouterr().err
    args = cli.build_parser(command[0]).parse_args([*command, "--json", str(tmp_path / "new" / "deep" / "r.json")])
    assert args.json.parent.is_dir()


def test_a_programming_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError):
        fail_with(ModuleNotFoundError("no", name="fedwright.nothing"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        fail_with(ZeroDivisionError(), monkeypatch)


def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fedwright", "profiles"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.parametrize("words", [[], ["server"], ["device"]], ids=["nothing", "server", "device"])
def test_a_command_that_is_missing_is_answered_with_the_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "COMMAND" in said
    assert " run " in said
    assert "required" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explian"], "there is no 'explian'; did you mean 'explain'? valid are artifact, bench, "),
        (["server", "rnu"], "there is no 'rnu'; did you mean 'run'? valid are audit, "),
    ],
    ids=["command", "of a group"],
)
def test_a_command_that_is_not_there_is_answered_with_the_nearest(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)

    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
