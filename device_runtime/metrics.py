"""What Prometheus reads of an agent, when it was started with --metrics-port; names and data of nobody."""

import time
from collections.abc import Iterator
from pathlib import Path

from fedwright import __version__
from fedwright.device_runtime import facts
from fedwright.device_runtime.resources import Resources
from fedwright.protocol.link.base import Link
from fedwright.protocol.support.metrics import (
    About,
    Endpoint,
    Figure,
    Metric,
    counter,
    disk_figures,
    gauge,
    link_figures,
)

OUTCOMES = ("done", "refused", "crashed")


class DeviceFigures:
    """Collects the figures of one agent; reads what the agent's own thread keeps, and changes nothing."""

    def __init__(self, resources: Resources, link: Link, state: Path, *, expires_s: float | None = None) -> None:
        self._have = resources
        self._link = link
        self._state = state
        self._expires_s = expires_s
        self._began_s = time.time()

    def endpoint(self) -> Endpoint:
        """As it is served."""
        return Endpoint(self.collect, self.problem)

    def problem(self) -> str:
        """Why no task can come; "" when one can."""
        return "" if self._link.connected else "the broker is not reached"

    def collect(self) -> Iterator[Figure]:
        """Everything there is to say now."""
        journal = self._have.journal
        entry = journal.entry
        yield About("fedwright_agent_info", "The release of the agent.", {"version": __version__})
        yield gauge("fedwright_agent_start_timestamp_seconds", "When the agent began.", self._began_s)
        yield counter("fedwright_agent_tasks_taken_total", "Tasks that were taken in hand.", journal.counts["taken"])
        ended = {outcome: float(journal.counts[outcome]) for outcome in OUTCOMES}
        yield Metric("fedwright_agent_tasks_total", "Attempts that ended, by how.", ended, "outcome", "counter")
        yield counter(
            "fedwright_agent_acknowledged_total", "Answers that the server has.", journal.counts["acknowledged"]
        )
        yield gauge("fedwright_agent_busy", "Whether a task is in hand.", entry is not None)
        yield gauge("fedwright_agent_round", "The round of the task in hand, else 0.", entry.task.round if entry else 0)
        done, of = self._have.runner.progress() if entry is not None and entry.answer is None else (0, 0)
        yield gauge(
            "fedwright_agent_training_progress_ratio", "Steps done of the task in hand.", done / of if of else 0
        )
        yield gauge("fedwright_agent_samples", "Samples that this device has.", self._have.told.samples)
        yield from self._of_the_board()
        yield from disk_figures(self._state)
        yield from link_figures(self._link)

    def _of_the_board(self) -> Iterator[Figure]:
        free_bytes = self._have.runner.free_bytes()
        yield gauge("fedwright_agent_free_memory_bytes", "Memory that a task may take.", free_bytes)
        yield gauge("fedwright_agent_memory_size_bytes", "Memory of the board.", self._have.board.ram_bytes)
        yield gauge("fedwright_agent_peak_memory_bytes", "Most memory that the agent has used.", facts.peak_rss_bytes())
        temperature_c = facts.temperature_c()
        if temperature_c is not None:
            yield gauge("fedwright_agent_temperature_celsius", "Temperature of the board.", temperature_c)
        if self._expires_s is not None:
            help = "When the certificate of this kind ends."
            ends = {"device": self._expires_s}
            yield Metric("fedwright_certificate_expiry_timestamp_seconds", help, ends, "kind")
