"""A device's answers in sums that hide its change (protocol/secure): what it gives away, to whom, and never twice.

A device trusts nobody but its peers' certificates. It masks a change only among neighbours whose keys they signed, it
agrees to one set of members per change, and of every neighbour it opens one kind of share, after so many neighbours
have signed the same set that no other set can have as many. It looks at the certificates of its neighbours and of as
many devices as a sum takes, not at those of all: somebody invented has neighbours, and they refuse.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from fedwright.device_runtime.secure.credentials import SumCredentials, Unenrolled
from fedwright.device_runtime.secure.kept import Change, KeptChange, Session, check_free, same_or_first
from fedwright.device_runtime.secure.summed_task import work_of
from fedwright.protocol.errors import DeviceError, FedwrightError, ProtocolError
from fedwright.protocol.messages import BlobRef, Stats, SumAnswer, SumAsk, Task
from fedwright.protocol.secure.graph import LEAST_DEVICES, is_connected, looked_at, quorum
from fedwright.protocol.secure.part import Part, noise_seed, own_mask, public_keys
from fedwright.protocol.secure.roster import Member, agreed_word, masked_word, read_roster

if TYPE_CHECKING:
    from fedwright.protocol.secure.masks import Words

log = logging.getLogger(__name__)

Offer = Callable[[bytes, int], BlobRef]
"""Makes a blob that the server may fetch, in chunks of at most so many bytes."""


class Allow(Protocol):
    """Raises ProtocolError for devices among whom what is kept must not be masked, or over whom not opened."""

    def __call__(self, devices: list[str], *, masked: bool) -> None:
        """Before it is."""
        ...


def over_anybody(devices: list[str], *, masked: bool) -> None:
    """A change goes into one sum, whoever is in it."""


class SecureSums:
    """What this device has in sums; answers are made of what is on its disk, so that one may be asked again."""

    def __init__(
        self, device: str, folder: Path, credentials: SumCredentials | None = None, *, allow: Allow = over_anybody
    ) -> None:
        self._device = device
        self._kept = KeptChange(folder)
        self._who: SumCredentials = credentials or Unenrolled()
        self._allow = allow
        self._part: Part | None = None

    def has(self, task: str) -> bool:
        """Whether something is kept under this name."""
        return self._kept.has(task)

    def keep(self, change: Change, result: Path) -> None:
        """Keep numbers, which lie in a file, until their sum is over."""
        self._kept.put(change, result)

    def take(self, task: Task, stats: Stats, result: Path) -> None:
        """Keep the change of a task, which lies in a file, until its sum is over."""
        if task.sum is None:
            raise DeviceError("this task's change belongs into no sum; this is a mistake in the program")
        weight = task.sum.weight(stats.samples)
        self.keep(Change(task.task, task.sum, work_of(task), weight, task.weights.chunk_bytes), result)

    def answer(self, ask: SumAsk, offer: Offer) -> SumAnswer:
        """What the server asks for; a problem instead when that is more than is safe."""
        stages = {"keys": self._keys, "share": self._shares, "agree": self._agreed, "open": self._opened}
        try:
            if ask.stage == "done":
                self._kept.forget(ask.task)
                return SumAnswer(ask.sum, "done")
            change = self._kept.of(ask.task)
            if ask.stage == "mask":
                return self._masked(ask, change, offer)
            if ask.stage not in stages:
                raise ProtocolError(f"a change has no {ask.stage}; this is a mistake of the server")
            return stages[ask.stage](ask, change)
        except (FedwrightError, OSError) as err:
            log.warning("refused in a sum (%s): %s", ask.stage, err)
            return SumAnswer(ask.sum, ask.stage, problem=str(err)[:500])

    def _keys(self, ask: SumAsk, change: Change) -> SumAnswer:
        session = self._kept.begin(change, ask.sum)
        return SumAnswer(ask.sum, "keys", member=self._member(session, change))

    def _member(self, session: Session, change: Change) -> Member:
        keys = public_keys(session.root)
        member = Member(self._device, session.name, *keys, certificate=self._who.certificate, work=change.work)
        return structs.replace(member, signature=self._who.sign(member.word()))

    def _shares(self, ask: SumAsk, change: Change) -> SumAnswer:
        session = self._kept.session(change, ask.sum)
        same_or_first(session.roster, ask.roster, "members")
        check_free(change, session.name)
        if not session.roster:
            self._check_roster(ask.roster, session, change)
            session = structs.replace(session, roster=ask.roster)
            self._kept.save(change, session)
        part = self._part_of(session)
        return SumAnswer(ask.sum, "share", sealed=part.sealed(), marks=part.marks())

    def _check_roster(self, roster: bytes, session: Session, change: Change) -> None:
        members = read_roster(roster)
        own = members.get(self._device)
        keys = public_keys(session.root)
        if own is None or (own.session, own.mask_key, own.share_key, own.work) != (session.name, *keys, change.work):
            raise ProtocolError("this sum does not have the keys that this device made for it; begin another")
        part = Part(self._device, session.root, roster)
        _check_size(len(part.names), change, "members")
        for name in sorted(self._looked_at(part, change)):
            member = members.get(name)
            if member is None:
                raise ProtocolError(f"the word of {name}, which this device must look at, is left out of the roster")
            self._who.check(name, member.certificate, member.word(), member.signature)

    def _masked(self, ask: SumAsk, change: Change, offer: Offer) -> SumAnswer:
        session = self._told_members(ask, change)
        part, sharers = self._part_of(session), sorted(ask.sharers)
        same_or_first(session.sharers, sharers, "devices that have shared")
        check_free(change, session.name)
        if not session.sharers:
            self._check_set(part, sharers, part.names, change)
            wanted = set(part.neighbours) & set(sharers)
            if ask.sealed.keys() != wanted:
                raise ProtocolError("the shares of some neighbours are missing, or are not this device's to keep")
            self._allow(sharers, masked=True)
            session = structs.replace(session, sharers=sharers, sealed=dict(ask.sealed))
            self._kept.save(change, session)
        words = self._words(change, part)
        part.mask(words, sharers)
        ref = offer(words.astype("<u4", copy=False).tobytes(), change.chunk_bytes)
        return SumAnswer(ask.sum, "mask", masked=ref, signature=self._who.sign(masked_word(part.digest, sharers)))

    def _words(self, change: Change, part: Part) -> "Words":
        """What goes under masks; noise is drawn once for a sum, or two answers would tell of it."""
        from fedwright.protocol.secure.masks import to_words
        from fedwright.protocol.secure.noisy_words import noisy_scale, noisy_words

        terms, row, members = change.terms, self._kept.row(change), len(part.names)
        if terms.noise_multiplier is None or terms.clip_norm is None:
            share = change.weight / terms.largest_weight
            return to_words(row, share, devices=members, reach=change.reach(members))
        scale = noisy_scale(members, len(row), clip=terms.clip_norm, multiplier=terms.noise_multiplier)
        return noisy_words(row, scale, clip=terms.clip_norm, seed=noise_seed(part.root, part.digest))

    def _agreed(self, ask: SumAsk, change: Change) -> SumAnswer:
        session = self._told_sharers(ask, change)
        part, present = self._part_of(session), sorted(ask.present)
        same_or_first(session.present, present, "devices in it")
        check_free(change, session.name)
        if not session.present:
            self._check_set(part, present, session.sharers, change)
            signers = set(present) & self._looked_at(part, change)
            self._check_signed(part, signers, masked_word(part.digest, session.sharers), ask.signatures)
            self._allow(present, masked=False)
            session = structs.replace(session, present=present)
            self._kept.save(change, session)
        word = agreed_word(part.digest, session.sharers, present)
        return SumAnswer(ask.sum, "agree", signature=self._who.sign(word))

    def _opened(self, ask: SumAsk, change: Change) -> SumAnswer:
        session = self._told_sharers(ask, change)
        if not session.present:
            raise ProtocolError("this device has not agreed to whom this sum is over; ask it first")
        part = self._part_of(session)
        around = {self._device, *part.neighbours}
        signers = sorted(ask.signatures.keys() & around)
        needed = quorum(len(around), part.terms.threshold)
        if len(signers) < needed:
            raise ProtocolError(f"{len(signers)} members agree on this sum but {needed} must; nothing is opened")
        word = agreed_word(part.digest, session.sharers, session.present)
        self._check_signed(part, signers, word, ask.signatures)
        shares = {}
        for owner, sealed in session.sealed.items():
            try:
                own, key = part.unsealed(owner, sealed)
            except ProtocolError as err:
                log.warning("in a sum: %s", err)
                continue
            shares[owner] = own if owner in session.present else key
        return SumAnswer(ask.sum, "open", own=own_mask(part.root, part.digest), shares=shares)

    def _told_members(self, ask: SumAsk, change: Change) -> Session:
        session = self._kept.session(change, ask.sum)
        if not session.roster:
            raise ProtocolError("this device does not know who is in this sum; tell it first")
        return session

    def _told_sharers(self, ask: SumAsk, change: Change) -> Session:
        session = self._told_members(ask, change)
        if not session.sharers:
            raise ProtocolError("this device has sent nothing into this sum; ask for that first")
        return session

    def _check_set(self, part: Part, some: Collection[str], of: Collection[str], change: Change) -> None:
        """Raise ProtocolError unless a part of the members is large enough and held together by masks."""
        if len(set(some)) < len(some) or not set(some) <= set(of) or self._device not in some:
            raise ProtocolError("the sum names devices that are not in it, or leaves this one out")
        # Of others nobody here knows whether they are real.
        _check_size(len(set(some) & {self._device, *self._looked_at(part, change)}), change, "devices")
        for whole in (part.names, {self._device, *part.neighbours}):
            left, needed = len(set(some) & set(whole)), quorum(len(whole), part.terms.threshold)
            if left < needed:
                raise ProtocolError(f"{left} of {len(whole)} members are left in the sum but {needed} must be")
        if not is_connected(part.graph, some):
            raise ProtocolError("those who are left in the sum fall into parts, which could be told from each other")

    def _looked_at(self, part: Part, change: Change) -> frozenset[str]:
        count = part.terms.neighbours
        return looked_at(part.names, part.digest, self._device, change.terms.least, count=count)

    def _check_signed(self, part: Part, devices: Collection[str], word: bytes, signatures: Mapping[str, bytes]) -> None:
        # What it has said itself it need not ask.
        for device in sorted(set(devices) - {self._device}):
            member = part.members[device]
            self._who.check(device, member.certificate, word, signatures.get(device, b""))

    def _part_of(self, session: Session) -> Part:
        if self._part is None or (self._part.root, self._part.roster) != (session.root, session.roster):
            self._part = Part(self._device, session.root, session.roster)
        return self._part


def _check_size(count: int, change: Change, what: str) -> None:
    least = max(LEAST_DEVICES, change.terms.least)
    if count < least:
        raise ProtocolError(f"a sum over {count} {what} hides too little; it takes {least}")
