"""Tools for experiments that `fedwright bench --track` tells of every simulation of a suite, and of its checks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwright.protocol import codec
from fedwright.server_runtime.track.base import Described, check_tools
from fedwright.server_runtime.track.thread import Numbers, TrackThread


@dataclass(frozen=True)
class _Asked:
    """Which tools, for which suite, and where they write."""

    tools: tuple[str, ...]
    suite: str
    folder: Path


# As in kept_jobs: suites make their jobs without knowing who asked for what.
_open: list[_Asked] = []


@contextmanager
def tracking(tools: Sequence[str], suite: str, folder: Path) -> Iterator[None]:
    """Inside the block every simulation is tracked."""
    check_tools(tools)
    asked = _Asked(tuple(tools), suite, folder / suite)
    _open.append(asked)
    try:
        yield
    finally:
        _open.remove(asked)


def tracking_of(job: str) -> dict[str, Any]:
    """The section [track] of a job's config; empty outside of such a block."""
    if not _open or not _open[-1].tools:
        return {}
    asked = _open[-1]
    return {"to": list(asked.tools), "folder": str(asked.folder / _plain(job)), "project": asked.suite}


def track_result(result: Mapping[str, Any]) -> None:
    """Tell the figures that a suite promises, and whether each holds."""
    if not _open or not _open[-1].tools:
        return
    asked = _open[-1]
    described = Described(asked.suite, codec.new_id(), asked.folder / "checks", asked.suite, str(result["command"]))
    thread = TrackThread(asked.tools, described)
    figures = {_plain(check["name"]): float(check["value"]) for check in result["checks"]}
    holds = {f"holds/{_plain(check['name'])}": float(check["holds"]) for check in result["checks"]}
    thread.tell(Numbers(0, figures | holds))
    thread.close()


def _plain(text: str) -> str:
    """A name that every tool and every disk takes."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:80] or "figure"
