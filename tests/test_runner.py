"""The test runner itself: a crash, a hang or a slip in one file is named, and the other files still count."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.links import wait_until
from helpers.tools import REPO
from testrun import process
from testrun.plan import Group, find_targets, make_groups, split_arguments

FINE = "def test_fine(): pass\ndef test_fine_too(): pass\n"
CRASHES = {
    "abort": ("import os\nos.abort()", "SIGABRT"),
    "null pointer": ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
    "native words": ("import os\nos.write(2, b'corrupted size\\n')\nos.abort()", "SIGABRT"),
}
Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Writes test files into a folder and goes there."""

    def write(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / "tests" / f"test_{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 60\n")
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return write


def run_tests(*arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Exit code and lines of the runner in the current folder."""
    done = subprocess.run(
        [sys.executable, str(REPO / "scripts" / "run_tests.py"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def inside(body: str, name: str = "test_it") -> str:
    """A test with these lines."""
    return f"def {name}():\n" + "".join(f"    {line}\n" for line in body.splitlines())


def test_all_fine_ends_with_zero_and_the_count(tree: Tree) -> None:
    tree(a=FINE, b=FINE)

    code, lines = run_tests()

    assert (code, lines[-1]) == (0, "4 passed, 0 failed")


def test_a_failure_is_named_with_what_it_said_and_a_skip_with_its_reason(tree: Tree) -> None:
    skip = "import pytest\n" + inside("pytest.skip('no such tool')")
    tree(a=FINE, b=inside("import os\nos.system('echo from a child >&2')\nassert 1 == 2"), c=skip)

    code, lines = run_tests()

    assert (code, lines[-1]) == (1, "2 passed, 1 failed, 1 skipped")
    assert "FAILED tests/test_b.py::test_it" in lines
    assert "SKIPPED tests/test_c.py::test_it: no such tool" in lines
    assert "from a child" in lines
    assert "E       assert 1 == 2" in lines


@pytest.mark.parametrize(("body", "sign"), CRASHES.values(), ids=CRASHES)
def test_a_crash_is_reported_by_test_and_every_other_file_runs(tree: Tree, body: str, sign: str) -> None:
    tree(a=FINE, b=inside(body) + FINE, c=FINE, d=FINE)

    code, lines = run_tests("--workers", "1")

    said = f"FAILED tests/test_b.py::test_it: crashed with {sign}; 2 further tests of the file did not run"
    assert (code, lines[-1]) == (1, "6 passed, 1 failed")
    assert said in lines
    assert any("test_b.py" in line and "in test_it" in line for line in lines), "no stack from faulthandler"
    assert ("corrupted size" in lines) == ("corrupted" in body)


def test_a_crash_while_a_file_is_imported_is_reported_by_file(tree: Tree) -> None:
    tree(a=FINE, b="import os\nos.abort()\n", c=FINE)

    code, lines = run_tests()

    assert (code, lines[-1]) == (1, "4 passed, 1 failed")
    assert "FAILED tests/test_b.py: crashed with SIGABRT" in lines


def test_a_crash_after_the_last_test_names_the_group(tree: Tree) -> None:
    tree(a=FINE, b="import atexit, os\natexit.register(os.abort)\n" + FINE)

    code, lines = run_tests()

    said = "FAILED tests/test_a.py tests/test_b.py: crashed with SIGABRT after tests/test_b.py::test_fine_too"
    assert (code, lines[-1]) == (1, "4 passed, 1 failed")
    assert said in lines


def test_what_a_crashed_group_started_is_ended(tree: Tree) -> None:
    child = f"[{sys.executable!r}, '-c', 'import threading; threading.Event().wait()']"
    body = f"import os, subprocess\nopen('pid', 'w').write(str(subprocess.Popen({child}).pid))\nos.abort()"
    folder = tree(a=inside(body))

    run_tests()

    stat = Path("/proc", (folder / "pid").read_text(), "stat")
    # SIGKILL takes a moment on a busy machine.
    wait_until(lambda: _is_dead(stat))


def _is_dead(stat: Path) -> bool:
    """Nobody but init is left to reap it: it may be there still, dead."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_hanging_test_is_ended_and_named(tree: Tree) -> None:
    tree(a=FINE, b=inside("import threading\nthreading.Event().wait()"), c=FINE)

    code, lines = run_tests("--timeout=1")

    assert (code, lines[-1]) == (1, "4 passed, 1 failed")
    assert "FAILED tests/test_b.py::test_it" in lines


def test_a_test_that_never_comes_back_to_python_is_ended_and_named(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deaf = "import signal, threading\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"
    tree(a=inside(f"{deaf}\nthreading.Event().wait()"), b=FINE)
    monkeypatch.setattr(process, "GRACE_S", 0.5)
    group = Group(("tests/test_a.py", "tests/test_b.py"), 0, 1.0)

    outcome = process.GroupProcess(group, ["--timeout=1"], tmp_path / "group").wait()

    assert outcome.failures == [process.Failure("tests/test_a.py::test_it", "hung in native code, ended")]
    assert outcome.left_out == ["tests/test_b.py"]
    assert "Fatal Python error: Aborted" in outcome.output


def test_a_file_that_cannot_be_imported_fails_alone(tree: Tree) -> None:
    tree(a=FINE, b="import nowhere_to_be_found\n")

    code, lines = run_tests()

    assert (code, lines[-1]) == (1, "2 passed, 1 failed")
    assert "FAILED tests/test_b.py" in lines


def test_an_error_after_a_test_makes_it_a_failed_one(tree: Tree) -> None:
    tree(a="import pytest\n@pytest.fixture\ndef f():\n    yield\n    assert False\ndef test_it(f): pass\n")

    code, lines = run_tests()

    assert (code, lines[-1]) == (1, "0 passed, 1 failed")


@pytest.mark.parametrize("arguments", [["-k", "nosuch"], ["tests/test_a.py::test_nosuch"], ["--nosuch"]], ids=str)
def test_nothing_ran_is_a_failure(tree: Tree, arguments: list[str]) -> None:
    tree(a=FINE)

    code, lines = run_tests(*arguments)

    assert code == 1
    assert lines[-1].startswith("0 passed, ")


def test_a_path_that_is_not_there_is_an_error_at_once(tree: Tree) -> None:
    tree(a=FINE)

    assert run_tests("tests/test_z.py") == (4, ["there is no tests/test_z.py; name files or folders of tests"])


def test_help_is_the_runners(tree: Tree) -> None:
    tree(a=FINE)

    code, lines = run_tests("--help")

    assert code == 0
    assert "--workers" in "\n".join(lines)


def test_paths_tests_and_expressions_choose(tree: Tree) -> None:
    folder = tree(a=FINE, b=FINE, c=FINE)

    assert run_tests("tests/test_a.py::test_fine")[1][-1] == "1 passed, 0 failed"
    assert run_tests(str(folder / "tests" / "test_a.py"), "tests/test_b.py", "-k", "too")[1][-1] == "2 passed, 0 failed"


def test_exit_first_starts_no_further_group(tree: Tree) -> None:
    tree(a="def test_no(): assert False\n" + FINE, b=FINE)
    Path("tests/durations.json").write_text(json.dumps({"tests/test_a.py": 99, "tests/test_b.py": 98}))

    assert run_tests("-x", "--workers=1")[1][-1] == "0 passed, 1 failed"
    assert run_tests("--workers=1")[1][-1] == "4 passed, 1 failed"


def test_two_groups_run_at_the_same_time(tree: Tree) -> None:
    """Each waits for the other's mark, so that one after the other could not pass."""
    wait = (
        "import os\nopen('{0}', 'w').close()\nwhile not os.path.exists('{1}'): pass\n"
        "import threading\nthreading.Event().wait(0.5)"
    )
    tree(a=inside(wait.format("a", "b")), b=inside(wait.format("b", "a")))
    Path("tests/durations.json").write_text(json.dumps({"tests/test_a.py": 99, "tests/test_b.py": 98}))

    assert run_tests("--workers=2", "--timeout=30")[1][-1] == "2 passed, 0 failed"


@pytest.mark.parametrize(("given", "seen"), [({}, "1"), ({"OMP_NUM_THREADS": "3"}, "3")], ids=["default", "given"])
def test_processes_share_the_cores(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], seen: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    tree(a=inside(f"import os\nassert os.environ['OMP_NUM_THREADS'] == '{seen}'"))

    assert run_tests("--workers=1000", **given)[0] == 0


def test_seconds_are_recorded_and_those_of_removed_files_forgotten(tree: Tree) -> None:
    tree(a=inside("import threading\nthreading.Event().wait(0.3)"), b=FINE)
    Path("tests/durations.json").write_text(json.dumps({"tests/test_b.py": 7.5, "tests/test_gone.py": 8.0}))

    run_tests("--record", "tests/test_a.py")

    found = json.loads(Path("tests/durations.json").read_text())
    assert found.pop("tests/test_a.py") >= 0.3
    assert found == {"tests/test_b.py": 7.5}


def test_long_files_have_a_process_each_and_tiers_stay_in_order() -> None:
    targets = [f"tests/{name}.py" for name in ("e2e/test_x", "a/test_1", "a/test_2", "a/test_3", "contracts/test_c")]

    groups = make_groups(targets, {"tests/a/test_2.py": 100.0, "tests/e2e/test_x.py": 300.0})

    assert [group.targets for group in groups] == [
        ("tests/a/test_2.py",),
        ("tests/a/test_1.py", "tests/a/test_3.py"),
        ("tests/contracts/test_c.py",),
        ("tests/e2e/test_x.py",),
    ]


def test_every_file_of_the_suite_is_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    targets = find_targets([])

    planned = [target for group in make_groups(targets, {}) for target in group.targets]

    assert len(planned) > 150
    assert sorted(planned) == sorted(str(path.relative_to(REPO)) for path in (REPO / "tests").rglob("test_*.py"))


def test_values_of_options_are_no_paths(tree: Tree) -> None:
    tree(a=FINE)

    paths, options = split_arguments(["-k", "tests", "tests", "-m", "not slow", "--tb=short"])

    assert paths == ["tests"]
    assert options == ["-k", "tests", "-m", "not slow", "--tb=short"]
