"""A run as people and their tools look at it: its history and what its devices are at now, as plain records.

The page, `fedwright top` and the metrics all read a run through this and nothing else: two files in its folder, which
a server that was killed has left whole.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedwright.server_runtime.watch.history import DeviceHistory, HistoryReader, RoundHistory, RunHistory, TaskHistory
from fedwright.server_runtime.watch.live import is_served, read_live

Row = dict[str, Any]
# Word of a device that is at something is old after so long: its server was killed, or it was.
STALE_S = 90.0
AT_WORK = ("training", "measuring")


class RunWatch:
    """Looks at one run; `look` takes in what is new, everything else only reads."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._reader = HistoryReader(folder)
        self.live: dict[str, Any] = {}
        self.served = False

    @property
    def history(self) -> RunHistory:
        """All that has happened."""
        return self._reader.history

    def look(self) -> bool:
        """Take in what was written since the last look; whether anything is other than before."""
        before = (self.live, self.served)
        changed = self._reader.look()
        self.live, self.served = read_live(self.folder), is_served(self.folder)
        return changed or before != (self.live, self.served)

    @property
    def state(self) -> str:
        """new, waiting, running, paused, complete, stopped, or killed: nobody serves it and nothing says why."""
        if not self.served:
            return "killed" if self.history.state in ("running", "paused") else self.history.state
        if self.history.orders.get("paused"):
            return "paused"
        return "waiting" if self.live.get("waiting") else "running"

    def summary(self) -> Row:
        """One line on the run: who it is, how far it has come and how it fares."""
        history, latest = self.history, self.history.latest
        return {
            "name": self.folder.name,
            "state": self.state,
            "served": self.served,
            "about": history.about,
            "orders": history.orders,
            "rounds_done": history.rounds_done,
            "began_s": history.lives[0][0] if history.lives else None,
            "ended_s": history.lives[-1][1] if history.lives else None,
            "lives": len(history.lives),
            "devices": len(history.devices),
            "present": sum(device.state not in ("away", "silent") for device in history.devices.values()),
            "waiting": self.live.get("waiting") or {},
            "stage": None if latest is None or latest.closed_s is not None else stage_row(latest),
            "figures": self.figures()[-1:],
            "version": history.version,
        }

    def fleet(self) -> list[Row]:
        """A row for every device that the run has met, in the order of their names."""
        present = self.live.get("devices") or {}
        now_s = self._clock()
        return [self._device(one, present.get(name), now_s) for name, one in sorted(self.history.devices.items())]

    def device(self, name: str) -> Row | None:
        """The row of one device."""
        known = self.history.devices.get(name)
        if known is None:
            return None
        return self._device(known, (self.live.get("devices") or {}).get(name), self._clock())

    def _device(self, known: DeviceHistory, status: Row | None, now_s: float) -> Row:
        """What is known of a device, with what it says of itself while it is at a task."""
        board, offer, stats = known.board, known.offer, known.stats
        row = {
            "device": known.device,
            "state": known.state,
            "detail": known.detail,
            "done": 0,
            "of": 0,
            "seen_s": known.seen_s,
            "board": board.get("model", ""),
            "profile": board.get("profile", ""),
            "cores": board.get("cores"),
            "ram_bytes": board.get("ram_bytes"),
            "free_bytes": known.free_bytes,
            "peak_bytes": stats.get("peak_rss_bytes"),
            "need_bytes": offer.get("need_bytes"),
            "temperature_c": None,
            "link_bytes_per_s": known.link.get("bytes_per_s"),
            "round_s": known.round_s,
            "round_bytes": known.round_bytes,
            "width": offer.get("width"),
            "rank": offer.get("rank"),
            "samples": known.samples,
            "accuracy": known.accuracy,
            "updates": known.updates,
            "failures": known.failures,
            "trains": known.trains,
            "agent": known.agent,
        }
        if not self.served:
            row["state"] = "away" if known.state in (*AT_WORK, "idle") else known.state
        elif status and now_s - status.get("time", 0.0) < STALE_S and known.state in AT_WORK:
            row |= {name: status[name] for name in ("done", "of", "free_bytes", "temperature_c") if name in status}
            said = status.get("state") or known.state
            row["state"] = known.state if said == "training" else said
            row["seen_s"] = max(known.seen_s, status["time"])
            row["ram_bytes"] = status.get("limit_bytes") or row["ram_bytes"]
        return row

    def figures(self) -> list[Row]:
        """Rounds that were closed, with what the curves show of them."""
        return [
            {"round": number, "closed_s": one.closed_s, **one.figures()}
            for number, one in sorted(self.history.rounds.items())
            if one.closed_s is not None
        ]

    def stages(self) -> list[Row]:
        """Every stage that the log knows, rounds and measurements, oldest first."""
        found = [*self.history.rounds.values(), *self.history.evaluations.values()]
        return [stage_row(one) for one in sorted(found, key=lambda one: (one.number, one.evaluation))]

    def stage(self, number: int, *, evaluation: bool = False) -> Row | None:
        """A stage with what each device did in it, and who holds it up or did."""
        found = (self.history.evaluations if evaluation else self.history.rounds).get(number)
        if found is None:
            return None
        tasks = [task_row(task, found.began_s) for _, task in sorted(found.tasks.items())]
        present = self.live.get("devices") or {}
        for row in tasks:
            status = present.get(row["device"])
            if status and not row["outcome"]:
                row["at"] = {name: status.get(name) for name in ("state", "done", "of")}
        return {**stage_row(found), "tasks": tasks, "held_up_by": _held_up_by(found)}


def stage_row(stage: RoundHistory) -> Row:
    """One line on a round, or on the measurement after it."""
    return {
        "round": stage.number,
        "evaluation": stage.evaluation,
        "began_s": stage.began_s,
        "closed_s": stage.closed_s,
        "seconds": stage.seconds,
        "devices": len(stage.tasks),
        "answered": sum(bool(task.outcome) for task in stage.tasks.values()),
        "accepted": sum(task.outcome == "accepted" for task in stage.tasks.values()),
    }


def task_row(task: TaskHistory, began_s: float) -> Row:
    """What a device did in a stage: when, how it ended, and what it was expected to take."""
    stats = task.stats
    return {
        "device": task.device,
        "from_s": task.sent_s - began_s,
        "to_s": None if task.ended_s is None else task.ended_s - began_s,
        "outcome": task.outcome,
        "detail": task.detail,
        "spans": task.spans,
        "accuracy": task.accuracy,
        "loss": stats.get("loss_last"),
        "samples": stats.get("samples"),
        "steps": stats.get("steps"),
        "train_s": stats.get("train_s"),
        "step_s": stats["train_s"] / stats["steps"] if stats.get("steps") else None,
        "expected_step_s": task.offer.get("step_s"),
        "peak_bytes": stats.get("peak_rss_bytes"),
        "expected_bytes": task.offer.get("need_bytes"),
        "energy_j": stats.get("energy_j"),
        "width": task.offer.get("width"),
        "rank": task.offer.get("rank"),
        "bytes_down": task.offer.get("bytes_down"),
    }


def _held_up_by(stage: RoundHistory) -> list[str]:
    """Devices that a stage waits for; of one that is over, the one it waited for longest."""
    open_tasks = sorted(task.device for task in stage.tasks.values() if not task.outcome)
    if open_tasks and stage.closed_s is None:
        return open_tasks
    ended = [task for task in stage.tasks.values() if task.ended_s is not None]
    return [max(ended, key=lambda task: task.ended_s or 0.0).device] if len(ended) > 1 else []
