"""Who is in the fleet: devices by id, told apart from a second device that claims the same id."""

from dataclasses import dataclass, field, replace
from typing import Literal

from fedwright.protocol.messages import Report

# A live device answers a challenge within one round trip; this leaves room for a slow link.
CHALLENGE_S = 3.0

Verdict = Literal["joined", "known", "contested", "taken"]


@dataclass(frozen=True)
class RegisteredDevice:
    """One device: which boot of it we talk to, and what it last reported."""

    device: str
    boot: str
    report: Report
    present: bool = True


@dataclass
class _Contest:
    newcomer: str
    report: Report
    until_s: float


@dataclass
class Registry:
    """The fleet as the server knows it.

    A report under a new boot may be the same board after a restart or a second board with the same
    id. Unless the old boot's connection is known to be gone, it is challenged: if it answers, the
    newcomer is turned away; if it stays silent for CHALLENGE_S, the newcomer takes the place.
    """

    _members: dict[str, RegisteredDevice] = field(default_factory=dict)
    _contests: dict[str, _Contest] = field(default_factory=dict)
    # Answers of `present` and `told`, until somebody comes, goes or says something else.
    _known: dict[tuple[str, ...] | None, dict[str, Report]] = field(default_factory=dict)

    def hear(self, device: str, boot: str, report: Report, *, now_s: float) -> Verdict:
        """Take in a report. `contested` asks the caller to send a challenge, `taken` to turn the new boot away."""
        member = self._members.get(device)
        if member is None or (not member.present and member.boot != boot):
            self._join(device, boot, report)
            return "joined"
        if member.boot == boot:
            returned = not member.present
            self._put(replace(member, report=report, present=True))
            if self._contests.pop(device, None) is not None:
                return "taken"
            return "joined" if returned else "known"
        if device not in self._contests:
            self._contests[device] = _Contest(boot, report, now_s + CHALLENGE_S)
            return "contested"
        return "known"

    def newcomer_boot(self, device: str) -> str | None:
        """The boot that contests this device's place, if any."""
        contest = self._contests.get(device)
        return None if contest is None else contest.newcomer

    def settle(self, *, now_s: float) -> list[str]:
        """Devices whose old boot stayed silent: the newcomer has joined in its place."""
        settled = [device for device, contest in self._contests.items() if contest.until_s <= now_s]
        for device in settled:
            contest = self._contests.pop(device)
            self._join(device, contest.newcomer, contest.report)
        return settled

    def lose(self, device: str, boot: str) -> bool:
        """The broker says a connection broke; True if it was the boot we talk to."""
        member = self._members.get(device)
        if member is None or member.boot != boot:
            return False
        self._put(replace(member, present=False))
        return True

    def amend(self, device: str, report: Report) -> None:
        """Put what a device reported into another form."""
        member = self._members.get(device)
        if member is not None:
            self._put(replace(member, report=report))

    def remove(self, device: str) -> None:
        """Forget a device that was dismissed."""
        self._members.pop(device, None)
        self._known.clear()

    def boot(self, device: str) -> str | None:
        """The boot of a present device, None when it is away."""
        member = self._members.get(device)
        return member.boot if member is not None and member.present else None

    def takes_parts(self, device: str) -> bool:
        """Whether a device's agent takes steps in parts."""
        member = self.known(device)
        return member is not None and member.report.parts

    def known(self, device: str) -> RegisteredDevice | None:
        """The member of that id, present or not."""
        return self._members.get(device)

    def present(self) -> dict[str, Report]:
        """Reports of the devices that are here now, in the order of their ids; the same object until one changes."""
        if None not in self._known:
            self._known[None] = {m.device: m.report for _, m in sorted(self._members.items()) if m.present}
        return self._known[None]

    def told(self, facts: tuple[str, ...]) -> dict[str, Report]:
        """`present` without edges and without devices that would tell these facts and have not yet."""
        if facts not in self._known:
            here = self.present().items()
            self._known[facts] = {d: r for d, r in here if not r.edge and not withholds(r, facts)}
        return self._known[facts]

    def _put(self, member: RegisteredDevice) -> None:
        self._members[member.device] = member
        self._known.clear()

    def _join(self, device: str, boot: str, report: Report) -> None:
        self._put(RegisteredDevice(device, boot, report))
        self._contests.pop(device, None)


def withholds(report: Report, facts: tuple[str, ...]) -> bool:
    """Whether a device would tell one of these facts and has not yet."""
    return any(fact in facts for fact in report.would_tell)
