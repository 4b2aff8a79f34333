"""Waits until enough devices are here for a round."""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from fedwright.protocol.errors import NoQuorum
from fedwright.protocol.messages import Report
from fedwright.server_runtime.fleet.admission import is_without_data
from fedwright.server_runtime.rounds import events


class Presence(Protocol):
    """Who is here, and how to wait for more."""

    observe: events.Observer
    clock: Callable[[], float]

    def present(self) -> dict[str, Report]:
        """Reports of the devices that are here now."""
        ...

    def poll(self, deadline_s: float) -> None:
        """Wait for messages, at most until the deadline, and deal with them."""
        ...


def wait_for_devices(
    tracker: Presence, needed: Callable[[Collection[str]], int], timeout_s: float, least: Callable[[], int | None]
) -> bool:
    """Wait until enough devices are here; NoQuorum when they do not come in time.

    least: so few will do once the time is over; True when it came to that.
    """
    deadline, told = tracker.clock() + timeout_s, False
    while not _enough(tracker.present(), wanted := needed(tracker.present())):
        if not told:
            tracker.observe(events.Waiting(wanted, tuple(tracker.present())))
        told = True
        tracker.poll(deadline)
        if tracker.clock() < deadline or _enough(tracker.present(), wanted):
            continue
        here = f"only {len(tracker.present())} of {wanted} devices are present after {timeout_s:.0f} s"
        enough = least()
        if enough is None or not _enough(tracker.present(), max(1, enough)):
            raise NoQuorum(f"{here}; start more devices or lower fleet.devices")
        tracker.observe(events.Warned(f"{here}; the run goes on with them"))
        return True
    return False


def _enough(present: Mapping[str, Report], needed: int) -> bool:
    """Whether so many are here, one of them with data: a run of bystanders alone has nothing to learn from."""
    return len(present) >= needed and not all(map(is_without_data, present.values()))
