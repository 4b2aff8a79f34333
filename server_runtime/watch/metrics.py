"""What Prometheus reads of a run: made when it asks, from what the run has written down.

The files of a run say it all, so counters go on where they were when a server is killed and resumed, and a scrape waits
for no round. Devices have series of their own up to `MOST_DEVICES`; whatever else reports is counted by its state.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from fedwright import __version__
from fedwright.protocol.link.base import Link
from fedwright.protocol.support.metrics import (
    About,
    Endpoint,
    Figure,
    Histogram,
    Metric,
    counter,
    disk_figures,
    gauge,
    link_figures,
)
from fedwright.server_runtime.watch.history import ENDINGS
from fedwright.server_runtime.watch.run_watch import Row, RunWatch

# Of so many devices each has series of its own; those that have ever given an update come first.
MOST_DEVICES = 1000
STATES = (
    "idle",
    "fetching",
    "training",
    "measuring",
    "uploading",
    "waiting",
    "refused",
    "rejected",
    "late",
    "silent",
    "away",
    "turned away",
    "revoked",
    "taken out",
    "other",
)
GONE = ("silent", "away", "turned away", "revoked", "taken out")
ROUND_BOUNDS_S = (0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
CERTIFICATES_S = 300.0
ACCURACIES = {"accuracy_mean": "mean", "accuracy_worst": "worst", "accuracy_tenth": "tenth_percentile"}
# name, help, key of a device's row, kind
OF_DEVICES = (
    ("device_last_seen_timestamp_seconds", "When the device was last heard.", "seen_s", "gauge"),
    ("device_updates_total", "Updates of the device that were taken.", "updates", "counter"),
    ("device_failures_total", "Tasks of the device that ended without an update.", "failures", "counter"),
    ("device_accuracy_ratio", "Accuracy of the model sent, on the device's own data.", "accuracy", "gauge"),
    ("device_peak_memory_bytes", "Most memory that the agent has used.", "peak_bytes", "gauge"),
    ("device_predicted_memory_bytes", "Memory that its task was predicted to take.", "need_bytes", "gauge"),
    ("device_free_memory_bytes", "Memory that a task may still take.", "free_bytes", "gauge"),
    ("device_temperature_celsius", "Temperature of the board.", "temperature_c", "gauge"),
    ("device_width_ratio", "Share of the model's channels that it was sent.", "width", "gauge"),
)


class RunFigures:
    """Collects the figures of one run."""

    def __init__(
        self,
        folder: Path,
        *,
        link: Link | None = None,
        expiries: Callable[[], dict[str, float]] = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._watch = RunWatch(folder, clock=clock)
        self.link = link
        self._expiries = expiries
        self._clock = clock
        self._expiry: dict[str, float] = {}
        self._expiry_s = float("-inf")

    def endpoint(self) -> Endpoint:
        """As it is served."""
        return Endpoint(self.collect, self.problem)

    def problem(self) -> str:
        """Why no device can be served now; "" when they can."""
        if self.link is not None and not self.link.connected:
            return "the broker is not reached"
        return ""

    def collect(self) -> Iterator[Figure]:
        """Everything there is to say now."""
        self._watch.look()
        yield from self._of_the_run()
        yield from self._of_rounds()
        yield from self._of_devices()
        yield from disk_figures(self._watch.folder)
        yield from self._of_certificates()
        if self.link is not None:
            yield from link_figures(self.link)

    def _of_the_run(self) -> Iterator[Figure]:
        history, about = self._watch.history, self._watch.history.about
        words = {name: str(about.get(name, "")) for name in ("run", "method", "model", "kind")}
        yield About("fedwright_run_info", "What is run, by which release.", words | {"version": __version__})
        yield gauge("fedwright_run_served", "Whether a server is at work on the run.", self._watch.served)
        yield gauge("fedwright_run_paused", "Whether somebody has paused the run.", self._watch.state == "paused")
        starts = [life[0] for life in history.lives if life[0] is not None]
        if starts:
            yield gauge("fedwright_run_start_timestamp_seconds", "When the server began to serve.", starts[-1])
        yield counter("fedwright_run_starts_total", "How often a server has taken the run up.", len(history.lives))
        yield gauge("fedwright_rounds_planned", "Rounds that the run is to have.", float(about.get("rounds", 0)))
        yield gauge("fedwright_rounds_completed", "Rounds that are done.", history.rounds_done)
        yield counter("fedwright_warnings_total", "Warnings of the server.", history.counts["warning"])
        yield Metric(
            "fedwright_tasks_total",
            "Tasks that ended, by how.",
            {ending: history.counts[ending] for ending in ENDINGS},
            "outcome",
            "counter",
        )

    def _of_rounds(self) -> Iterator[Figure]:
        history, latest = self._watch.history, self._watch.history.latest
        running = latest is not None and latest.closed_s is None and self._watch.state == "running"
        open_tasks = [task for task in latest.tasks.values() if not task.outcome] if running and latest else []
        yield gauge("fedwright_round_open_tasks", "Devices that the running round waits for.", len(open_tasks))
        age_s = max(0.0, self._clock() - latest.began_s) if latest is not None and open_tasks else 0.0
        yield gauge("fedwright_round_age_seconds", "How long the round that runs has been open, else 0.", age_s)
        deadline_s = float(history.about.get("deadline_s", 0.0))
        yield gauge("fedwright_round_deadline_seconds", "After how long a round closes with those here.", deadline_s)
        closed = [one for one in history.rounds.values() if one.closed_s is not None]
        durations = [one.seconds for one in closed]
        yield Histogram("fedwright_round_duration_seconds", "How long rounds took.", durations, ROUND_BOUNDS_S)
        if closed:
            last = max(closed, key=lambda one: one.number)
            figures = last.figures()
            yield gauge(
                "fedwright_round_close_timestamp_seconds", "When a round was last closed.", last.closed_s or 0.0
            )
            if "loss" in figures:
                yield gauge("fedwright_round_loss", "Mean training loss of the last round.", figures["loss"])
            found = {label: figures[name] for name, label in ACCURACIES.items() if name in figures}
            help = "Accuracy of the models sent in the last round, on the devices' own data."
            yield Metric("fedwright_round_accuracy_ratio", help, found, "statistic")

    def _of_devices(self) -> Iterator[Figure]:
        fleet = self._watch.fleet()
        count = Counter(row["state"] if row["state"] in STATES else "other" for row in fleet)
        states = {state: float(count[state]) for state in STATES}
        yield Metric("fedwright_devices", "Devices that the run has met, by what they are at.", states, "state")
        members = sorted((row for row in fleet if _is_member(row)), key=lambda row: (not row["updates"], row["device"]))
        shown = members[:MOST_DEVICES]
        missing = len(fleet) - len(shown)
        yield gauge("fedwright_devices_without_series", "Devices that have no series of their own.", missing)
        up = {row["device"]: float(row["state"] not in GONE) for row in shown}
        yield Metric("fedwright_device_up", "Whether the device is here.", up, "device")
        for name, help, key, kind in OF_DEVICES:
            values = {row["device"]: float(row[key]) for row in shown if row[key] is not None}
            yield Metric(f"fedwright_{name}", help, values, "device", "counter" if kind == "counter" else "gauge")

    def _of_certificates(self) -> Iterator[Figure]:
        """The soonest end of each kind; thousands of certificates are not read at every scrape."""
        now_s = self._clock()
        if now_s - self._expiry_s >= CERTIFICATES_S:
            self._expiry, self._expiry_s = self._expiries(), now_s
        ends = {kind: end_s for kind, end_s in sorted(self._expiry.items())}
        help = "When the first certificate of this kind ends."
        yield Metric("fedwright_certificate_expiry_timestamp_seconds", help, ends, "kind")


def _is_member(row: Row) -> bool:
    """Whether a device belongs to the fleet: who was turned away without ever having done anything does not."""
    return bool(row["updates"] or row["failures"]) or row["state"] not in ("turned away", "revoked")
