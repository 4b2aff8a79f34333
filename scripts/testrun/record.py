"""Inside a group's process: writes every step of pytest to a file at once, so that a crash leaves what came before."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from testrun.events import Event, encode

NATIVE = "Captured native stderr"


class Recorder:
    """A pytest plugin; whoever started the process reads the file."""

    def __init__(self, events: Path) -> None:
        self._events = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        # A test may put something else in the place of file 2; this stays what it was.
        self._stderr = os.dup(2)
        self._start_bytes = 0

    def _write(self, event: Event) -> None:
        os.write(self._events, encode(event))

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """A file is about to be imported."""
        if isinstance(collector, pytest.File):
            self._write(Event("collect", file=str(collector.path), limit_s=_limit_s(collector)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported counts as one failed test."""
        if report.failed:
            self._write(Event("phase", test=report.nodeid, outcome="failed"))
        elif report.skipped:
            self._write(Event("phase", test=report.nodeid, outcome="skipped", reason=_reason(report.longrepr)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Everything that is going to run, in order."""
        for item in session.items:
            self._write(Event("planned", test=item.nodeid, file=str(item.path)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """A test begins."""
        self._start_bytes = os.fstat(self._stderr).st_size
        limit_s = _limit_s(item)
        self._write(Event("start", test=item.nodeid, limit_s=limit_s, stderr_bytes=self._start_bytes))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """What native code and child processes wrote belongs to a failed test's output."""
        report = yield
        if report.failed:
            size = os.fstat(self._stderr).st_size - self._start_bytes
            native = os.pread(self._stderr, size, self._start_bytes) if size > 0 else b""
            if native.strip():
                report.sections.append((NATIVE, native.decode(errors="replace")))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Setup, call or teardown of a test is over."""
        reason = _reason(report.longrepr) if report.skipped else ""
        phase = Event("phase", test=report.nodeid, outcome=report.outcome, seconds=report.duration, reason=reason)
        self._write(phase)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test is over."""
        self._write(Event("finish", test=nodeid))

    def pytest_sessionfinish(self) -> None:
        """No further test comes."""
        self._write(Event("end"))


def _limit_s(node: pytest.Collector | pytest.Item) -> float:
    """After how many seconds pytest-timeout ends this test; 0 for never."""
    marker = node.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.kwargs["timeout"] if "timeout" in marker.kwargs else marker.args[0])
    given = node.config.getoption("timeout", default=None)
    return float(node.config.getini("timeout") or 0 if given is None else given)


def _reason(longrepr: object) -> str:
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr).removeprefix("Skipped: ")
