"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedwright.cli.notebook_view import NotebookView
from fedwright.protocol.support.steps import listening

if TYPE_CHECKING:
    from fedwright.protocol.messages import Stats, Status
    from fedwright.server_runtime.rounds.events import (
        DeviceJoined,
        DeviceLost,
        DeviceMeasured,
        DeviceTurnedAway,
        Event,
        LessOffered,
        Observer,
        Ordered,
        PrivacySpent,
        RoundClosed,
        TaskFailed,
        Waiting,
        Warned,
    )


log = logging.getLogger(__name__)

# Devices that a screen has lines for.
SHOWN = 16
REVOKED, AWAY = "[red]revoked[/red]", "[red]turned away[/red]"
# Rounds by which the time that is left is guessed.
LOOKED_BACK = 5
# States of a device that a round waits for.
BUSY = ("training", "measuring")


class Progress:
    """An observer of a run; use it in a `with` block."""

    def __init__(self, rounds: int, devices: int, *, silent: bool = False) -> None:
        """silent: say nothing, where the log on the same screen says it all."""
        self._silent = silent
        self._rounds = rounds
        self._devices = devices
        self._console = Console(stderr=True)
        in_notebook = self._console.is_jupyter
        if in_notebook:
            # Lines go into the cell's output as plain text, not as one picture each, nor in red.
            self._console = Console(file=sys.stdout, force_jupyter=False)
        self._began_s = time.monotonic()
        self._closed = 0
        self._round_s: list[float] = []
        # Long work of the server itself, each with how much of it is done, of how much, and since when.
        self._work: dict[str, tuple[int, int, float]] = {}
        self._open = ExitStack()
        self._headline = f"waiting for {devices} devices"
        self._states: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._accuracy: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        # What busy devices are at by their own word.
        self._at: dict[str, str] = {}
        self._live: Live | NotebookView | None = None
        if in_notebook and not silent:
            self._live = NotebookView(self._render)
        elif self._console.is_terminal and not silent:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
            self._open.enter_context(listening(self._take_work))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if self._live is not None:
            self._live.stop()

    def _take_work(self, what: str, done: int, of: int) -> None:
        began_s = self._work[what][2] if what in self._work else time.monotonic()
        self._work[what] = (done, of, began_s)
        if done >= of:
            del self._work[what]
        self._redraw()

    def __call__(self, event: "Event") -> None:
        """Take an event of the run."""
        self._take(event)
        self._redraw()

    def _redraw(self) -> None:
        """A terminal is drawn by a clock of its own; a notebook's cell is drawn by what happens."""
        if isinstance(self._live, NotebookView):
            self._live.refresh()

    def _take(self, event: "Event") -> None:
        from fedwright.server_runtime.rounds import events

        if isinstance(event, events.Waiting):
            self._wait(event)
        elif isinstance(event, events.StagePlanned):
            self._headline = "measuring" if event.evaluation else f"round {event.round} of {self._rounds}"
            self._at.clear()
            for device in event.devices:
                (self._lost if device in self._lost else self._states)[device] = BUSY[event.evaluation]
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
            self._round_s.append(event.seconds)
            self._say(round_line(event, self._rounds))
        elif isinstance(event, events.DeviceStatus):
            self._at[event.device] = status_line(event.status)
        else:
            self._take_fate(event)

    def _take_fate(
        self, event: "DeviceJoined | DeviceMeasured | DeviceLost | DeviceTurnedAway | PrivacySpent | Warned | Ordered"
    ) -> None:
        """Who came, went or was sent away, what was told of devices, what is ordered, what the server warns of."""
        from fedwright.server_runtime.rounds import events

        if isinstance(event, events.DeviceJoined):
            self._join(event)
        elif isinstance(event, events.DeviceMeasured):
            self._say(f"{event.device} has measured itself")
        elif isinstance(event, events.DeviceLost):
            self._lose(event.device)
        elif isinstance(event, events.DeviceTurnedAway):
            if not event.double:
                self._states[event.device] = AWAY
            self._say(f"{event.device} was turned away: {event.reason}")
        elif isinstance(event, events.Ordered):
            rounds = event.force.get("rounds")
            self._rounds = rounds if isinstance(rounds, int) else self._rounds
            self._say(f"{event.by or 'somebody'} ordered: {event.kind} {event.device}".rstrip())
        elif isinstance(event, events.Warned):
            if event.fate == "revoked":
                self._states[event.device] = REVOKED
            # The log has it from whoever warned.
            self._show(f"WARNING: {event.text}")

    def watch(self, here: bool) -> None:
        """Take the news that the broker has gone or is back; the link itself writes it into the log."""
        self._show("the broker is back" if here else "the broker is gone; trying until it is back")

    def _wait(self, event: "Waiting") -> None:
        here = f"; here: {', '.join(event.present)}" if event.present else ""
        missing = event.needed - len(event.present)
        self._headline = f"waiting for {missing} of {event.needed} devices"
        self._say(f"{self._headline}{here}")

    def _join(self, event: "DeviceJoined") -> None:
        device, known = event.device, event.device in self._states
        # What it was at goes on when it comes back.
        before = self._lost.pop(device, self._states.get(device, "joined"))
        self._states[device] = before
        data = event.report.data
        has = f"{data.samples} samples" if data.input_shape else "classes alone, no data"
        said = "came back" if known else f"joined with {has}"
        self._say(f"{device} {said} ({self._count()})")

    def _lose(self, device: str) -> None:
        if self._states.get(device) == REVOKED:
            return
        before = self._lost.setdefault(device, self._states.get(device, "joined"))
        self._states[device] = "[red]lost[/red]"
        waits = f"; {self._headline} waits for it" if before in BUSY else ""
        self._say(f"{device} lost its connection{waits} ({self._count()})")

    def _count(self) -> str:
        gone = sum(state in (REVOKED, AWAY) for state in self._states.values()) + len(self._lost)
        here = f"{len(self._states) - gone} of {self._devices} devices are here"
        if not self._closed and not any(state in BUSY for state in self._states.values()):
            self._headline = here
        return here

    def _take_stats(self, device: str, stats: "Stats", seconds: float) -> None:
        self._states[device] = "[green]done[/green]"
        self._seconds[device] = seconds
        if stats.holdout and stats.correct_before is not None:
            self._accuracy[device] = stats.correct_before / stats.holdout

    def _say(self, line: str) -> None:
        log.info("%s", line)
        self._show(line)

    def _show(self, line: str) -> None:
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
            self._left(),
        )
        for what, (done, of, began_s) in list(self._work.items()):
            left = _left((time.monotonic() - began_s) / done * (of - done)) if done else ""
            head.add_row(ProgressBar(of, done, width=30), f"{what}: {done} of {of}", "", left)
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("device", "state", "accuracy", "seconds"):
            table.add_column(column, style="dim" if column == "seconds" else "")
        for device, state in sorted(self._states.items())[:SHOWN]:
            accuracy = f"{self._accuracy[device]:.1%}" if device in self._accuracy else ""
            seconds = f"{self._seconds[device]:.1f}" if device in self._seconds else ""
            shown = self._at.get(device, state) if state in BUSY else state
            table.add_row(device, Text.from_markup(shown), accuracy, seconds)
        more = len(self._states) - SHOWN
        return Group(head, table, Text(f"and {more} more")) if more > 0 else Group(head, table)

    def _left(self) -> str:
        """How long the rounds to come will take, by the last ones."""
        last = self._round_s[-LOOKED_BACK:]
        return _left(sum(last) / len(last) * max(0, self._rounds - self._closed)) if last else ""


def without_arrivals(observer: "Observer") -> "Observer":
    """Hundreds of devices that are there from the start need no line each."""
    from fedwright.server_runtime.rounds.events import DeviceJoined, Waiting

    return lambda event: None if isinstance(event, DeviceJoined | Waiting) else observer(event)


def _left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s left" if minutes else f"{rest} s left"


def status_line(status: "Status") -> str:
    """What a device is at, in a few words."""
    if not status.of:
        return status.state
    if status.state == "training":
        return f"training step {status.done}/{status.of}"
    return f"{status.state} {status.done / status.of:.0%}"


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
