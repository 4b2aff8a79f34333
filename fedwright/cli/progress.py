"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedwright.protocol.messages import Stats
    from fedwright.server_runtime.rounds.events import (
        DeviceJoined,
        DeviceLost,
        DeviceTurnedAway,
        Event,
        LessOffered,
        RoundClosed,
        TaskFailed,
        Warned,
    )


# Devices that a screen has lines for.
SHOWN = 16
REVOKED, AWAY = "[red]revoked[/red]", "[red]turned away[/red]"


class Progress:
    """An observer of a run; use it in a `with` block."""

    def __init__(self, rounds: int, devices: int, *, silent: bool = False) -> None:
        """silent: say nothing, where the log on the same screen says it all."""
        self._silent = silent
        self._rounds = rounds
        self._devices = devices
        self._console = Console(stderr=True)
        self._began_s = time.monotonic()
        self._closed = 0
        self._headline = f"waiting for {devices} devices"
        self._states: dict[str, str] = {}
        self._accuracy: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._live = (
            Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=True)
            if self._console.is_terminal and not silent
            else None
        )

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: "Event") -> None:
        """Take an event of the run."""
        from fedwright.server_runtime.rounds import events

        if isinstance(event, events.StagePlanned):
            self._headline = "measuring" if event.evaluation else f"round {event.round} of {self._rounds}"
            self._states.update(dict.fromkeys(event.devices, "measuring" if event.evaluation else "training"))
        elif isinstance(event, events.UpdateTaken):
            self._take_stats(event.device, event.stats, event.seconds)
        elif isinstance(event, events.TaskFailed):
            self._states[event.device] = "[red]failed[/red]"
            self._say(f"{_place(event)}: {event.device} gave no update: {event.detail}")
        elif isinstance(event, events.LessOffered):
            self._states[event.device] = "measuring" if event.evaluation else "training less"
            self._say(f"{_place(event)}: {event.device} was offered less: {event.detail}")
        elif isinstance(event, events.RoundClosed):
            self._closed = event.round
            self._say(round_line(event, self._rounds))
        else:
            self._take_fate(event)

    def _take_fate(self, event: "DeviceJoined | DeviceLost | DeviceTurnedAway | Warned") -> None:
        """Who came, went or was sent away, and what the server warns of."""
        from fedwright.server_runtime.rounds import events

        if isinstance(event, events.DeviceJoined):
            known = event.device in self._states
            self._states[event.device] = "joined"
            if not known:
                here = sum(state not in (REVOKED, AWAY) for state in self._states.values())
                self._headline = f"{here} of {self._devices} devices are here"
                self._say(f"{event.device} joined with {event.report.data.samples} samples ({self._headline})")
        elif isinstance(event, events.DeviceLost):
            if self._states.get(event.device) != REVOKED:
                self._states[event.device] = "[red]lost[/red]"
                self._say(f"{event.device} lost its connection")
        elif isinstance(event, events.DeviceTurnedAway):
            if not event.double:
                self._states[event.device] = AWAY
            self._say(f"{event.device} was turned away: {event.reason}")
        else:
            if event.fate == "revoked":
                self._states[event.device] = REVOKED
            self._say(f"WARNING: {event.text}")

    def _take_stats(self, device: str, stats: "Stats", seconds: float) -> None:
        self._states[device] = "[green]done[/green]"
        self._seconds[device] = seconds
        if stats.holdout and stats.correct_before is not None:
            self._accuracy[device] = stats.correct_before / stats.holdout

    def _say(self, line: str) -> None:
        if not self._silent:
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _render(self) -> RenderableType:
        """The bar and one line per device."""
        head = Table.grid(padding=(0, 2))
        elapsed = f"{time.monotonic() - self._began_s:.0f} s"
        head.add_row(
            ProgressBar(self._rounds, self._closed, width=30, complete_style="cyan", finished_style="green"),
            self._headline,
            elapsed,
        )
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("device", "state", "accuracy", "seconds"):
            table.add_column(column, style="dim" if column == "seconds" else "")
        for device, state in sorted(self._states.items())[:SHOWN]:
            accuracy = f"{self._accuracy[device]:.1%}" if device in self._accuracy else ""
            seconds = f"{self._seconds[device]:.1f}" if device in self._seconds else ""
            table.add_row(device, Text.from_markup(state), accuracy, seconds)
        more = len(self._states) - SHOWN
        return Group(head, table, Text(f"and {more} more")) if more > 0 else Group(head, table)


def _place(event: "TaskFailed | LessOffered") -> str:
    return "evaluation" if event.evaluation else f"round {event.round}"


def round_line(event: "RoundClosed", rounds: int) -> str:
    """One line about a finished round."""
    parts = [f"round {event.round}/{rounds} took {event.seconds:.1f} s"]
    if "updates" in event.metrics:
        parts.append(f"{event.metrics['updates']:.0f} updates")
    if "loss" in event.metrics:
        parts.append(f"loss {event.metrics['loss']:.3f}")
    if "accuracy_before" in event.metrics:
        parts.append(f"accuracy of the model sent out {event.metrics['accuracy_before']:.1%}")
    return ", ".join(parts)
