"""One group in a process: start it, watch that it goes on, and say what became of each of its tests."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testrun.events import Event, EventFile
from testrun.plan import Group, file_of

CHILD = Path(__file__).parents[1] / "run_group.py"
# A crash in native code would take with it what pytest holds of file 2; it stays in the group's own file instead.
ALWAYS = ["-q", "--capture=sys", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
NOTHING_SELECTED = 5
# pytest-timeout ends a test that hangs; only what does not come back to Python at all is left to the watch here.
GRACE_S = 30.0
LAST_WORDS_S = 5.0


@dataclass(frozen=True)
class Failure:
    """A failed test, or a crash under the name of the test or file it happened in."""

    name: str
    what: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a group's tests; `left_out` are files that did not come to run."""

    group: Group
    folder: Path
    seconds: float
    counts: Counter[str]
    failures: Sequence[Failure] = ()
    skips: Sequence[tuple[str, str]] = ()
    file_seconds: Mapping[str, float] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    output: str = ""


class GroupProcess:
    """pytest in a session of its own, with its output and events in a folder."""

    def __init__(self, group: Group, options: Sequence[str], folder: Path) -> None:
        self._group = group
        self._folder = folder
        folder.mkdir(parents=True)
        self._events = EventFile(folder / "events")
        command = [sys.executable, "-X", "faulthandler", str(CHILD), str(folder / "events"), *ALWAYS]
        command += [f"--basetemp={folder / 'tmp'}", *options, *group.targets]
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("a+b") as stderr:
            self._started_s = time.monotonic()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
            )

    def wait(self) -> Outcome:
        """The outcome, once the process ended by itself or was ended because a test hangs."""
        self._events.update()
        changed_s, hung = time.monotonic(), False
        while not hung and not self._ended(0.25):
            if self._events.update():
                changed_s = time.monotonic()
            limit_s = next((e.limit_s for e in reversed(self._events.events) if e.kind in ("start", "collect")), 0.0)
            hung = limit_s > 0 and time.monotonic() - changed_s > limit_s + GRACE_S
        if hung:
            self.stop(signal.SIGABRT)
        # What a crashed group started must not go on beside the others.
        _signal(self._process.pid, signal.SIGKILL)
        self._events.update()
        return judge(self._group, self._events.events, self._ending(hung))

    def stop(self, number: signal.Signals) -> None:
        """End the group's processes; SIGABRT makes Python say where it was."""
        _signal(self._process.pid, number)
        if not self._ended(LAST_WORDS_S):
            _signal(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _ended(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _ending(self, hung: bool) -> "Ending":
        code = self._process.returncode
        crashed = f"crashed with {signal.Signals(-code).name}" if code < 0 else ""
        death = "hung in native code, ended" if hung else crashed
        return Ending(self._folder, code, death, time.monotonic() - self._started_s)


@dataclass(frozen=True)
class Ending:
    """What is left of a process; `death` says why it ended before its time, empty when it did not."""

    folder: Path
    code: int
    death: str
    seconds: float

    def said(self, name: str) -> str:
        """What it wrote to stdout or stderr."""
        return (self.folder / name).read_text(errors="replace")


def judge(group: Group, events: Sequence[Event], ending: Ending) -> Outcome:
    """Count each test once: failed where any of its phases failed."""
    phases = [event for event in events if event.kind == "phase"]
    outcomes: dict[str, str] = {}
    for event in phases:
        outcomes[event.test] = max(outcomes.get(event.test, "passed"), event.outcome, key=_SEVERITY.index)
    failures = [Failure(test) for test, outcome in outcomes.items() if outcome == "failed"]
    left_out: list[str] = []
    if ending.death:
        culprit = _last_running(events)
        failures = [failure for failure in failures if failure.name != culprit]
        failures.append(Failure(culprit or _all_of(group), _in_words(ending.death, culprit, events)))
        outcomes[failures[-1].name] = "failed"
        left_out = _not_done(group, events, culprit)
    elif ending.code not in (0, NOTHING_SELECTED) and not failures:
        failures.append(Failure(_all_of(group), f"pytest ended with exit code {ending.code}"))
        outcomes[failures[-1].name] = "failed"
    return Outcome(
        group,
        ending.folder,
        ending.seconds,
        Counter(outcomes.values()),
        failures,
        skips=[(event.test, event.reason) for event in phases if event.outcome == "skipped"],
        file_seconds=_seconds_by_file(phases),
        left_out=left_out,
        output=ending.said("stdout") + _stderr_part(ending, failures) if failures else "",
    )


_SEVERITY = ["passed", "skipped", "failed"]


def _last_running(events: Sequence[Event]) -> str:
    """The test that had begun and not finished, or the file whose import had; empty where neither."""
    last = next((event for event in reversed(events) if event.kind in ("collect", "planned", "start", "finish")), None)
    if last is None or last.kind in ("planned", "finish"):
        return ""
    return last.test or os.path.relpath(last.file)


def _not_done(group: Group, events: Sequence[Event], culprit: str) -> list[str]:
    """Files with tests that did not run, but for the one that ended the process."""
    started = any(event.kind == "start" for event in events)
    finished = {event.test for event in events if event.kind == "finish"}
    planned = [event.test for event in events if event.kind == "planned"]
    waiting = {file_of(test) for test in planned if test not in finished} if started else set(group.files)
    blamed = culprit or next((event.test for event in reversed(events) if event.kind == "finish"), "")
    return [file for file in group.files if file in waiting and file != file_of(blamed)] if blamed else []


def _in_words(death: str, culprit: str, events: Sequence[Event]) -> str:
    finished = [event.test for event in events if event.kind == "finish"]
    if culprit:
        rest = {e.test for e in events if e.kind == "planned" and file_of(e.test) == file_of(culprit)}
        missed = len(rest - set(finished) - {culprit})
        return f"{death}; {missed} further tests of the file did not run" if missed else death
    return f"{death} after {finished[-1]}" if finished else f"{death} before any test"


def _all_of(group: Group) -> str:
    return " ".join(group.files)


def _seconds_by_file(phases: Sequence[Event]) -> dict[str, float]:
    total: dict[str, float] = {}
    for event in phases:
        total[file_of(event.test)] = total.get(file_of(event.test), 0.0) + event.seconds
    return total


def _stderr_part(ending: Ending, failures: Sequence[Failure]) -> str:
    """A crash's last words; a failed test shows its own part in pytest's report already."""
    crashed = any(failure.what for failure in failures)
    stderr = ending.said("stderr").strip() if crashed else ""
    return f"\n{' stderr ':-^100}\n{stderr}\n" if stderr else ""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
