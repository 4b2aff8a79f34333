"""The runs below a folder, as the page shows them: records without any path of this machine."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fedwright.server_runtime.watch.history import TaskHistory, runs_below
from fedwright.server_runtime.watch.run_watch import Row, RunWatch, task_row

# Two visitors of one moment see the same look.
LOOK_S = 0.5
NEWS = 100
# Where something lies on this machine or on a device is nobody's business who looks from elsewhere.
_PLAIN = frozenset({int, float, bool, type(None)})
_PATH = re.compile(r"(?<![\w:/<])(?:~|[A-Za-z]:)?(?:/[^\s/:;,'\"()]+){2,}/?")


def without_paths(text: str) -> str:
    """A sentence with only the last part of every path in it."""
    return _PATH.sub(lambda found: "…/" + found.group().rstrip("/").rpartition("/")[2], text)


def shown(value: Any) -> Any:
    """A record with no path in any of its texts."""
    if isinstance(value, str):
        return without_paths(value) if "/" in value else value
    if isinstance(value, dict):
        # Most of it is numbers, and there may be thousands of records.
        return {name: one if type(one) in _PLAIN else shown(one) for name, one in value.items()}
    return [shown(one) for one in value] if isinstance(value, list | tuple) else value


class Runs:
    """Every run below a folder by its name; each is looked at when somebody asks, and at most twice a second."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self._watches: dict[str, RunWatch] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._looked_s: dict[str, float] = {}

    def find(self) -> list[str]:
        """Names of the runs that are there now."""
        folders = {folder.name: folder for folder in runs_below(self.parent)}
        for name in self._watches.keys() - folders.keys():
            del self._watches[name]
        for name, folder in folders.items():
            if name not in self._watches:
                self._watches[name], self._locks[name] = RunWatch(folder), asyncio.Lock()
        return sorted(folders)

    @asynccontextmanager
    async def looked_at(self, name: str) -> AsyncIterator[RunWatch | None]:
        """A run as it is now, for as long as the block; None when there is none of that name."""
        if name not in self._watches:
            self.find()
        watch = self._watches.get(name)
        if watch is None:
            yield None
            return
        async with self._locks[name]:
            if time.monotonic() - self._looked_s.get(name, -LOOK_S) >= LOOK_S:
                # The log of a long run takes a while the first time.
                await asyncio.to_thread(watch.look)
                self._looked_s[name] = time.monotonic()
            yield watch

    async def summaries(self) -> list[Row]:
        """One line on every run, the newest first."""
        found = []
        for name in self.find():
            async with self.looked_at(name) as watch:
                if watch is not None:
                    found.append(shown(watch.summary()))
        return sorted(found, key=lambda row: (not row["served"], -(row["began_s"] or 0.0)))


def run_page(watch: RunWatch) -> Row:
    """What the view of a run shows: its curves, and what was expected of each device and came of it."""
    summary = watch.summary()
    costs = []
    for name, tasks in _last_tasks(watch).items():
        row = task_row(tasks, 0.0)
        costs.append({"device": name} | {key: row[key] for key in ("step_s", "expected_step_s")})
        costs[-1] |= {key: row[key] for key in ("peak_bytes", "expected_bytes", "width")}
    return {
        **shown(summary),
        "figures": watch.figures(),
        "stages": watch.stages()[-200:],
        "lives": [list(life) for life in watch.history.lives],
        "costs": costs,
        "news": shown(list(watch.history.news)[-NEWS:]),
    }


def _last_tasks(watch: RunWatch) -> dict[str, TaskHistory]:
    """The last task of each device that ended well and was more than a measurement."""
    found: dict[str, TaskHistory] = {}
    for _, stage in sorted(watch.history.rounds.items(), reverse=True):
        for name, task in stage.tasks.items():
            if task.outcome == "accepted":
                found.setdefault(name, task)
        if len(found) == len(watch.history.devices):
            break
    return dict(sorted(found.items()))


def device_page(watch: RunWatch, device: str) -> Row | None:
    """What the view of a device shows: the board, each of its tasks and its lines in the log."""
    row, known = watch.device(device), watch.history.devices.get(device)
    if row is None or known is None:
        return None
    tasks = []
    for _, stage in sorted(watch.history.rounds.items()):
        task = stage.tasks.get(device)
        if task is not None:
            tasks.append({"round": stage.number, **task_row(task, stage.began_s)})
    more = {"board_facts": known.board, "offer": known.offer, "link": known.link, "stats": known.stats}
    page: Row = shown({**row, **more, "tasks": tasks, "lines": list(known.lines)[::-1], "state_of_run": watch.state})
    return page
