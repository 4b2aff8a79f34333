"""One sum from its members' keys to its opening. Killed at any moment, it goes on from what is in the store.

Devices leave at any stage: who is not in the roster, or gave no part, is simply not in the sum; of those in it enough
neighbours have shares. Where too few are left the session ends in `TooFew`, and what was masked in it stays masked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from fedwright.protocol import codec
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ProtocolError
from fedwright.protocol.messages import CountTerms, SumAnswer
from fedwright.protocol.secure.graph import NEIGHBOURS, THRESHOLD, is_connected, quorum
from fedwright.protocol.secure.masks import Words, read_words
from fedwright.protocol.secure.opening import Opening
from fedwright.protocol.secure.roster import (
    Certificates,
    Member,
    agreed_word,
    digest_of,
    masked_word,
    pack_roster,
    read_roster,
    roster_for,
    unpack_roster,
)
from fedwright.server_runtime.rounds.secure.record import SumRecord
from fedwright.server_runtime.rounds.secure.talk import StageTalk

Save = Callable[[SumRecord], None]
"""Makes a record durable."""

_NOBODY = ("", b"", b"")


class TooFew(Exception):
    """Too few devices are left to open a sum; says why. masked: their changes are in it, and go into no other."""

    def __init__(self, reason: str, *, masked: bool) -> None:
        super().__init__(reason)
        self.masked = masked


@dataclass
class SumSession:
    """Leads one session. problems: devices that are not in the sum, or did not do what they promised, and why."""

    talk: StageTalk
    blobs: BlobStore
    save: Save
    least: int
    authority: bytes = b""
    neighbours: int = NEIGHBOURS
    threshold: float = THRESHOLD
    problems: dict[str, str] = field(default_factory=dict)

    def run(self, record: SumRecord) -> tuple[Words, SumRecord]:
        """The sum of what is behind the parts of those present; TooFew or ProtocolError when there is none."""
        if not record.roster:
            record = self._roster(record)
        if not record.sealed:
            record = self._share(record)
        if not record.parts:
            record = self._mask(record)
        signatures = self._agree(record)
        return self._open(record, signatures), record

    def _roster(self, record: SumRecord) -> SumRecord:
        members: dict[str, Member] = {}

        def take(device: str, answer: SumAnswer) -> None:
            members[device] = self._checked_member(device, answer, record)

        self._ask({device: record.ask(device, "keys") for device in record.tasks}, take)
        keys = [key for member in members.values() for key in (member.mask_key, member.share_key)]
        works = [member.work for member in members.values()]
        usual = max(works, key=works.count, default=b"")
        for device, member in list(members.items()):
            if keys.count(member.mask_key) > 1 or keys.count(member.share_key) > 1:
                self._leave_out(members, device, "its key is that of another device")
            elif member.work != usual:
                self._leave_out(members, device, "it has trained something else than the others")
        self._require(len(members), self.least, "gave keys")
        roster = pack_roster(list(members.values()), neighbours=self.neighbours, threshold=self.threshold)
        return self._saved(structs.replace(record, roster=roster))

    def _checked_member(self, device: str, answer: SumAnswer, record: SumRecord) -> Member:
        member = answer.member
        if member is None or (member.device, member.session) != (device, record.session):
            raise ProtocolError("its keys are those of another device, or for another sum")
        self._check(member, member.word(), member.signature)
        return member

    def _share(self, record: SumRecord) -> SumRecord:
        graph = record.graph()
        sealed: dict[str, dict[str, bytes]] = {}
        marks: dict[str, dict[str, bytes]] = {}

        def take(device: str, answer: SumAnswer) -> None:
            if answer.sealed.keys() != graph[device] or answer.marks.keys() != graph[device] | {device}:
                raise ProtocolError("it gave shares for others than its neighbours, or not for all of them")
            sealed[device], marks[device] = dict(answer.sealed), dict(answer.marks)

        rosters = {device: roster_for(record.roster, device, self.least) for device in graph}
        self._ask({device: record.ask(device, "share", roster=rosters[device]) for device in graph}, take)
        self._require_set(sealed, record, "gave shares")
        return self._saved(structs.replace(record, sealed=sealed, marks=marks))

    def _mask(self, record: SumRecord) -> SumRecord:
        graph, members, sharers = record.graph(), read_roster(record.roster), record.sharers
        word = masked_word(digest_of(record.roster), sharers)
        found = {}

        def take(device: str, answer: SumAnswer) -> None:
            if answer.masked is None:
                raise ProtocolError("it sent no masked numbers")
            self._check(members[device], word, answer.signature)
            found[device] = (structs.replace(answer.masked, inline=None), answer.signature)

        asks = {d: record.ask(d, "mask", sharers=sharers, sealed=record.sealed_for(d, graph)) for d in sharers}
        self._ask(asks, take)
        self._require_set(found, record, "sent their part", masked=True)
        parts = {device: ref for device, (ref, _) in found.items()}
        signed = {device: signature for device, (_, signature) in found.items()}
        return self._saved(structs.replace(record, parts=parts, signed=signed))

    def _agree(self, record: SumRecord) -> dict[str, bytes]:
        members, present = read_roster(record.roster), record.present
        word = agreed_word(digest_of(record.roster), record.sharers, present)
        signatures: dict[str, bytes] = {}

        def take(device: str, answer: SumAnswer) -> None:
            self._check(members[device], word, answer.signature)
            signatures[device] = answer.signature

        asks = {
            d: record.ask(d, "agree", present=present, signatures=record.near(d, record.signed, self.least))
            for d in present
        }
        self._ask(asks, take)
        self._require(
            len(signatures), quorum(len(members), unpack_roster(record.roster).threshold), "agreed", masked=True
        )
        return signatures

    def _open(self, record: SumRecord, signatures: Mapping[str, bytes]) -> Words:
        opening = Opening(record.roster, record.sharers, record.present, record.marks)

        def take(device: str, answer: SumAnswer) -> None:
            if answer.own is None:
                raise ProtocolError("it opened nothing")
            opening.take(device, answer.own, answer.shares)

        # Those who agreed after the others have opened are not needed.
        asks = {d: record.ask(d, "open", signatures=record.near(d, signatures, self.least)) for d in sorted(signatures)}
        self._ask(asks, take, enough=lambda: not opening.lacking)
        if opening.lacking:
            names = ", ".join(opening.lacking[:5])
            raise TooFew(f"too little of {names} is open: too many neighbours left or gave wrong shares", masked=True)
        length = record.parts[record.present[0]].size_bytes // 4
        return opening.total({d: read_words(self.blobs.read(ref.sha256), length) for d, ref in record.parts.items()})

    def _ask(self, asks: Mapping[str, object], take: Callable[[str, SumAnswer], None], **more: object) -> None:
        self.problems |= self.talk.ask_all(asks, take, **more)  # type: ignore[arg-type]

    def _check(self, member: Member, word: bytes, signature: bytes) -> None:
        """Raise ProtocolError unless a member signed; where nobody is enrolled everybody's word is taken."""
        if self.authority:
            self._certificates().check(member.device, member.certificate, word, signature)

    def _certificates(self) -> Certificates:
        if self._known is None:
            self._known = Certificates(self.authority)
        return self._known

    _known: Certificates | None = None

    def _leave_out(self, members: dict[str, Member], device: str, reason: str) -> None:
        del members[device]
        self.problems[device] = reason

    def _require(self, count: int, needed: int, what: str, *, masked: bool = False) -> None:
        if count < needed:
            raise TooFew(f"{count} devices {what} but a sum takes {needed}", masked=masked)

    def _require_set(self, some: Mapping[str, object], record: SumRecord, what: str, *, masked: bool = False) -> None:
        needed = quorum(len(record.members), unpack_roster(record.roster).threshold)
        self._require(len(some), max(self.least, needed), what, masked=masked)
        if not is_connected(record.graph(), some):
            raise TooFew(f"those who {what} fall into parts that could be told from each other", masked=masked)

    def _saved(self, record: SumRecord) -> SumRecord:
        self.save(record)
        return record


def new_record(tasks: Mapping[str, str], counts: CountTerms | None = None) -> SumRecord:
    """A session of its own for these devices' tasks, or for their counts."""
    return SumRecord(codec.new_id(), dict(tasks), counts=counts)


def without(tasks: Mapping[str, str], devices: Sequence[str]) -> dict[str, str]:
    """The tasks of the others."""
    return {device: task for device, task in tasks.items() if device not in devices}
