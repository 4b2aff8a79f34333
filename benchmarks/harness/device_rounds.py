"""What every device of a finished run used in every round, beside what the server expected from the rounds before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Stats
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.fleet.speeds import Speeds
from fedwright.server_runtime.rounds.store.base import Planned, RoundStore
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_folder.folder import RunFolder
from fedwright.server_runtime.spec import Structure


def rows_of_run(path: Path) -> list[dict[str, Any]]:
    """One row per round and device of a run's folder, of emulated devices or of real ones."""
    folder = RunFolder(path)
    if not folder.store.is_file():
        raise ConfigError(f"{path} is not the folder of a run; give one that `fedwright server run` or a demo has kept")
    builder = Builder(folder.artifacts)
    store = SqliteRoundStore(folder.store)
    try:
        return round_rows(store, lambda structure: builder.build(structure).manifest)
    finally:
        store.close()


def round_rows(store: RoundStore, manifest: Callable[[Structure], Manifest]) -> list[dict[str, Any]]:
    """Rows in order of those rounds whose tasks are kept; a device's first has nothing to be expected from."""
    speeds, traffic = Speeds(), _Traffic()
    rows = []
    for closed in store.closed():
        replies = store.replies(closed.position)
        for planned in store.plan(closed.position) or []:
            reply = replies.get(planned.task.task)
            if reply is None or reply.update is None:
                continue
            found = manifest(planned.assignment.structure)
            rows.append({"round": closed.position.round, **_row(planned, reply.update.stats, found, speeds, traffic)})
            recipe = planned.task.recipe
            speeds.take(planned.device, found, reply.update.stats, batch=recipe.batch, part=recipe.part)
    return rows


def _row(planned: Planned, stats: Stats, found: Manifest, speeds: Speeds, traffic: "_Traffic") -> dict[str, Any]:
    recipe = planned.task.recipe
    expected = speeds.predict(planned.device, found, batch=recipe.batch, part=recipe.part)
    up, down = traffic.since(planned.device, stats)
    return {
        "device": planned.device,
        "s": stats.task_s,
        "training s": stats.train_s,
        "predicted training s": None if expected is None else expected.step_s * stats.steps,
        "CPU s": stats.cpu_s,
        "training CPU s": stats.train_cpu_s,
        "peak MB": stats.peak_rss_bytes / 1e6,
        "up kB": up / 1e3,
        "down kB": down / 1e3,
        "J": stats.energy_j,
    }


class _Traffic:
    """Agents count bytes from their start, which a restart sets back to zero."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}

    def since(self, device: str, stats: Stats) -> tuple[int, int]:
        """Bytes up and down since the device's last task."""
        up, down = self._before.get(device, (0, 0))
        self._before[device] = (stats.bytes_up, stats.bytes_down)
        if stats.bytes_up < up or stats.bytes_down < down:
            up = down = 0
        return stats.bytes_up - up, stats.bytes_down - down
