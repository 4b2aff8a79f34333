"""Runs all tests or some: groups of files in processes, as many at a time as there are cores; one line closes it."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import FrameType

from testrun.plan import DURATIONS, Group, find_targets, make_groups, read_durations, split_arguments
from testrun.process import GroupProcess, Outcome

# They need the terminal, one process for all, or the cache of failures: plain pytest does that.
DIRECT = {"--pdb", "--trace", "-s", "--capture=no", "--collect-only", "--co", "--version"}
DIRECT |= {"--fixtures", "--markers", "--lf", "--last-failed", "--ff", "--failed-first", "--sw", "--stepwise"}
STOP = {"-x", "--exitfirst"}
HELP = """Runs groups of test files in processes of their own: unit tests first, then contracts, then end-to-end. A
crash or a hang is reported by test, and the other files still run. Every other argument goes to pytest: paths, -k, -x;
what needs the terminal or one process for all (--pdb, -s, --lf) is plain pytest. Each process gets its part of the
cores as OMP_NUM_THREADS unless that is set. Exit code 1 when anything failed, crashed, or nothing ran."""
# What expensive fixtures build for all groups of a run goes into this folder.
SHARED = "FEDWRIGHT_TEST_RUN"
THREADS = "OMP_NUM_THREADS"
USAGE = 4
INTERRUPTED = 130


class Run:
    """The groups of one run; after `stop` no further one begins."""

    def __init__(self, options: Sequence[str], folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._lock = threading.Lock()
        self._live: set[GroupProcess] = set()
        self._begun = 0
        self._stopped = False
        self._stop_early = bool(STOP & set(options))

    def finish(self, group: Group) -> list[Outcome]:
        """Run a group; what a crash left out runs again in a new process."""
        outcomes: list[Outcome] = []
        while group.targets:
            process = self._begin(group)
            if process is None:
                break
            outcome = process.wait()
            with self._lock:
                self._live.discard(process)
                self._stopped |= self._stop_early and bool(outcome.failures)
            outcomes.append(outcome)
            group = group.without(set(group.files) - set(outcome.left_out))
        return outcomes

    def _begin(self, group: Group) -> GroupProcess | None:
        with self._lock:
            if self._stopped:
                return None
            self._begun += 1
            process = GroupProcess(group, self._options, self._folder / str(self._begun))
            self._live.add(process)
            return process

    def stop(self) -> None:
        """End what runs."""
        with self._lock:
            self._stopped = True
            live = list(self._live)
        for process in live:
            process.stop(signal.SIGINT)


def run_groups(run: Run, groups: Sequence[Group], workers: int) -> Iterator[Outcome]:
    """Outcomes as they come."""
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run.finish, group) for group in groups]
        try:
            for future in as_completed(futures):
                yield from future.result()
        except KeyboardInterrupt:
            run.stop()
            raise


def progress_line(outcome: Outcome) -> str:
    """A group in one line."""
    files = outcome.group.files
    named = files[0] if len(files) == 1 else f"{os.path.commonpath(files)} ({len(files)} files)"
    return f"{closing_line(outcome.counts)} in {outcome.seconds:.1f} s: {named}"


def closing_line(counts: Counter[str]) -> str:
    """What a reader of the last line looks for."""
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    return f"{counts['passed']} passed, {counts['failed']} failed{skipped}"


def report(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Everything about failures, then why tests were skipped."""
    for outcome in outcomes:
        if outcome.failures:
            yield f"\n{' ' + os.path.commonpath(outcome.group.files) + ' ':=^100}\n{outcome.output}"
            yield f"files of these tests are kept in {outcome.folder}"
    yield from sorted(f"SKIPPED {test}: {reason}" for outcome in outcomes for test, reason in outcome.skips)
    for outcome in outcomes:
        for failure in outcome.failures:
            yield f"FAILED {failure.name}{': ' if failure.what else ''}{failure.what}"


def record(outcomes: Sequence[Outcome]) -> None:
    """Keep seconds of each file for the balance of later runs; files that did not run keep theirs."""
    known = {file: seconds for file, seconds in read_durations().items() if Path(file).exists()}
    measured = {file: seconds for outcome in outcomes for file, seconds in outcome.file_seconds.items()}
    rounded = {file: round(seconds, 1) for file, seconds in sorted({**known, **measured}.items())}
    DURATIONS.write_text(json.dumps(rounded, indent=0) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Run, print, and give the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/test", description=HELP, allow_abbrev=False)
    workers = int(os.environ.get("TEST_WORKERS") or _cores())
    parser.add_argument(
        "--workers", type=int, default=workers, help="processes at a time; else TEST_WORKERS, or the cores"
    )
    parser.add_argument("--record", action="store_true", help=f"keep seconds in {DURATIONS}, for the balance")
    own, passed_on = parser.parse_known_args(arguments)
    if DIRECT & set(passed_on):
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *passed_on])
    try:
        paths, options = split_arguments(passed_on)
    except FileNotFoundError as error:
        _say(str(error))
        return USAGE
    signal.signal(signal.SIGTERM, _interrupt)
    started_s = time.monotonic()
    try:
        outcomes = run_all(make_groups(find_targets(paths), read_durations()), options, max(1, own.workers))
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    for line in report(outcomes):
        _say(line)
    if own.record:
        record(outcomes)
    total = sum((outcome.counts for outcome in outcomes), Counter[str]())
    _say(f"{len(outcomes)} processes, {own.workers} at a time, {time.monotonic() - started_s:.0f} s")
    _say(closing_line(total))
    return 1 if total["failed"] or not total["passed"] + total["skipped"] else 0


def run_all(groups: Sequence[Group], options: Sequence[str], workers: int) -> list[Outcome]:
    """All outcomes, each said when it comes; what failed groups wrote into temporary folders is kept."""
    folder = Path(tempfile.mkdtemp(prefix="tests-"))
    os.environ[SHARED] = str(folder)
    # Threads of one process that wait for those of another cost most of the time of a run.
    os.environ.setdefault(THREADS, str(max(1, _cores() // workers)))
    outcomes: list[Outcome] = []
    try:
        for outcome in run_groups(Run(options, folder), groups, workers):
            outcomes.append(outcome)
            _say(progress_line(outcome))
            if not outcome.failures:
                shutil.rmtree(outcome.folder, ignore_errors=True)
    finally:
        if not any(outcome.failures for outcome in outcomes):
            shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
