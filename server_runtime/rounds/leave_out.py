"""Plans with those devices whose reports a method can use; who makes it fail is left out with a sentence."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from fedwright.protocol.messages import Report
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.absorber import FAULTS

T = TypeVar("T")
Act = Callable[[Mapping[str, Report]], T]


class LeftOutDevices:
    """Devices that a method could not plan with; one that reports something else is tried again."""

    def __init__(self, observe: events.Observer) -> None:
        self._observe = observe
        self._out: dict[str, Report] = {}

    def usable(self, reports: Mapping[str, Report]) -> Mapping[str, Report]:
        """The reports without those that were found unusable before."""
        if not self._out:
            return reports
        return {d: r for d, r in reports.items() if d not in self._out or self._out[d].data != r.data}

    def do(self, act: Act[T], reports: Mapping[str, Report], *, restart: Callable[[], object]) -> T:
        """What the act comes to with as many devices as it can be done with; its own error when with none.

        restart: undo what a failed try did.
        """
        usable = dict(self.usable(reports))
        try:
            return act(usable)
        except FAULTS:
            problems = _culprits(act, usable, restart=restart)
            restart()
            if not problems or len(problems) == len(usable):
                raise
        for device, problem in problems.items():
            self._out[device] = usable.pop(device)
            text = f"the method cannot use its report ({problem}), so it takes no part; mend its data or its agent"
            self._observe(events.Warned(text, device, "left out"))
        return act(usable)


def _culprits(act: Act[T], reports: Mapping[str, Report], *, restart: Callable[[], object]) -> dict[str, str]:
    """Devices with which the act fails even alone; where there is none, those with which it fails beside the others."""

    def fails(some: Mapping[str, Report]) -> str | None:
        restart()
        try:
            act(some)
        except FAULTS as err:
            return str(err) or type(err).__name__
        return None

    alone = {device: fails({device: report}) for device, report in reports.items()}
    found = {device: problem for device, problem in alone.items() if problem is not None}
    if found:
        return found
    kept: dict[str, Report] = {}
    for device, report in reports.items():
        problem = fails({**kept, device: report})
        if problem is None:
            kept[device] = report
        else:
            found[device] = problem
    return found
