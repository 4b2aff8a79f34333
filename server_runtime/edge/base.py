"""What all kinds of edges do alike: give up without a host, obey its dismissal, stop when asked."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from fedwright.protocol.errors import IdentityTaken, LinkError
from fedwright.protocol.messages import Dismiss
from fedwright.server_runtime.edge.host_channel import HostChannel

log = logging.getLogger(__name__)

TICK_S = 0.5
# How often devices hear that their edge is alive.
BEAT_S = 2.0


@dataclass(frozen=True)
class EdgeOptions:
    """once: leave when the host's run is over. host_timeout_s: give up when no host was heard for so long.

    least: an edge that stands for its devices reports when so many of them are here.
    """

    once: bool = False
    host_timeout_s: float = 600.0
    least: int = 1


class BaseEdge:
    """One edge server on its way from its start until it is dismissed or stopped."""

    def __init__(self, up: HostChannel, options: EdgeOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = up.presence.name
        self._up = up
        self._options = options
        self._clock = clock
        self._host_heard = False
        self._heard_s = 0.0
        self._started_s = clock()
        self._beat_s = self._started_s - BEAT_S
        self._stopping = Event()
        self._over = False

    def stop(self) -> None:
        """Make `run` return soon; safe from any thread and from signal handlers."""
        self._stopping.set()

    def _is_beat_due(self) -> bool:
        """Whether devices should hear again that somebody is here."""
        due = self._clock() - self._beat_s >= BEAT_S
        self._beat_s = self._clock() if due else self._beat_s
        return due

    def _check_host(self) -> None:
        """Raise LinkError when no host was heard of for too long."""
        if not self._host_heard and self._clock() - self._started_s >= self._options.host_timeout_s:
            raise LinkError(
                f"edge {self._name} has heard no host for {self._options.host_timeout_s:.0f} s; start one with "
                f"`fedwright server run` or check host.broker and host.fleet"
            )

    def _take_dismiss(self, dismiss: Dismiss) -> None:
        if dismiss.boot != self._up.presence.boot:
            return
        if dismiss.why == "identity_taken":
            raise IdentityTaken(f"the host turned edge {self._name} away: {dismiss.reason}")
        log.info("the host is done: %s", dismiss.reason)
        self._over = self._options.once
