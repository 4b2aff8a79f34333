"""Sums of more devices than one has neighbours: a device looks at those around it, a cheat elsewhere meets others."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.secure.credentials import Enrolled
from fedwright.device_runtime.secure.summed_task import work_of
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link.security import Bundle, BundleInfo
from fedwright.protocol.messages import BlobRef, Effort, Recipe, Returns, Stats, SumAnswer, SumAsk, SumTerms, Task
from fedwright.protocol.secure.graph import NEIGHBOURS
from fedwright.protocol.secure.part import Part, public_keys
from fedwright.protocol.secure.roster import (
    Member,
    Roster,
    digest_of,
    masked_word,
    pack_roster,
    roster_for,
    unpack_roster,
)
from fedwright.server_runtime.fleet.authority import Authority
from fedwright.server_runtime.rounds.secure.record import SumRecord

NAMES = [f"d{number:02}" for number in range(44)]


def task_of(least: int) -> Task:
    ref = make_ref(b"what all of them train")
    terms, recipe = SumTerms("group", least, 1.0, Effort(8)), Recipe(8, 0.1, 1)
    return Task("t", "b", "r", 1, ref, ref, recipe, Returns(), deadline_s=10.0, sum=terms)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Enrolled]:
    folder = tmp_path_factory.mktemp("trust")
    authority, found = Authority.create(folder / "ours"), {}
    for name in NAMES:
        made, info = (
            authority.issue_device(name, folder / name),
            BundleInfo(name, "f", "mqtts://localhost:1", "00" * 32),
        )
        found[name] = Enrolled(Bundle(info, authority.ca, made.cert, made.key))
    return found


class Cheat:
    """One real device among many that its server plays, some of them with real certificates."""

    def __init__(self, folder: Path, credentials: dict[str, Enrolled], least: int = 3, **terms: Any) -> None:
        self.folder, self.credentials, self.least, self.terms = folder, credentials, least, terms
        folder.mkdir()
        self.device = SecureSums("d00", folder, credentials["d00"])
        np.zeros(8, np.float32).tofile(folder / "result")
        self.device.take(task_of(least), Stats(1, 1, 0.0, 0.0, 0), folder / "result")
        own = self.ask("keys").member
        assert own is not None
        self.members = {"d00": own} | {name: self.member(name) for name in NAMES[1:]}

    def member(self, name: str) -> Member:
        keys, who = public_keys(name.encode().ljust(32)), self.credentials[name]
        plain = Member(name, "s", *keys, who.certificate, work=work_of(task_of(self.least)))
        return structs.replace(plain, signature=who.sign(plain.word()))

    def ask(self, stage: Any, **more: Any) -> SumAnswer:
        def offer(data: bytes, chunk_bytes: int) -> BlobRef:
            return make_ref(data, chunk_bytes=chunk_bytes)

        return self.device.answer(SumAsk("s", "b", stage, "t", **more), offer)

    def part(self, name: str = "d00") -> Part:
        return Part(name, name.encode().ljust(32), self.roster)

    @property
    def roster(self) -> bytes:
        return pack_roster(list(self.members.values()), **self.terms)

    def invent(self, *names: str) -> None:
        """Members in others' names, whom nobody signed for."""
        for name in names:
            self.members[name] = structs.replace(self.members[name], signature=bytes(64))

    def masked(self) -> None:
        assert not self.ask("share", roster=self.roster).problem
        near = self.part().neighbours
        sealed = {name: self.part(name).sealed()["d00"] for name in near}
        assert not self.ask("mask", sharers=NAMES, sealed=sealed).problem

    def signed(self, *names: str) -> dict[str, bytes]:
        word = masked_word(self.part().digest, NAMES)
        return {name: self.credentials[name].sign(word) for name in names}


def test_somebody_invented_is_refused_by_all_around(tmp_path: Path, credentials: dict[str, Enrolled]) -> None:
    """Whom a device does not look at has other neighbours, who do."""
    outcomes = set()
    for name in NAMES[1:]:
        cheat = Cheat(tmp_path / name, credentials)
        cheat.invent(name)
        near = set(cheat.part().neighbours)
        problem = cheat.ask("share", roster=cheat.roster).problem
        assert len(near) == NEIGHBOURS
        assert (f"{name} has not signed" in problem) == bool(problem) == (name in near)
        outcomes.add(name in near)
        if len(outcomes) == 2:
            break
    assert outcomes == {True, False}


def test_an_owner_who_demands_more_devices_than_neighbours_has_all_of_them_checked(
    tmp_path: Path, credentials: dict[str, Enrolled]
) -> None:
    cheat = Cheat(tmp_path / "many", credentials, least=44)
    assert not cheat.ask("share", roster=cheat.roster).problem
    for number, name in enumerate(NAMES[1:8]):
        other = Cheat(tmp_path / f"one-{number}", credentials, least=44)
        other.invent(name)
        assert f"{name} has not signed" in other.ask("share", roster=other.roster).problem


def test_those_around_a_device_must_be_left_whatever_is_said_of_others(
    tmp_path: Path, credentials: dict[str, Enrolled]
) -> None:
    cheat = Cheat(tmp_path / "left", credentials)
    cheat.masked()
    near = sorted(cheat.part().neighbours)
    present = sorted(set(NAMES) - set(near[:12]))

    answer = cheat.ask("agree", present=present, signatures=cheat.signed(*present))
    assert answer == SumAnswer("s", "agree", problem=answer.problem)
    assert "21 of 33 members are left in the sum but 23 must be" in answer.problem


def test_words_of_devices_far_away_do_not_count_for_those_around(
    tmp_path: Path, credentials: dict[str, Enrolled]
) -> None:
    cheat = Cheat(tmp_path / "words", credentials)
    cheat.masked()
    near, far = cheat.part().neighbours, sorted(set(NAMES) - {"d00", *cheat.part().neighbours})

    lacking = cheat.signed("d00", *far, *near[1:])
    assert f"{near[0]} " in cheat.ask("agree", present=NAMES, signatures=lacking).problem
    agreed = cheat.ask("agree", present=NAMES, signatures=cheat.signed("d00", *near))
    assert not agreed.problem
    opened = cheat.ask("open", signatures=dict.fromkeys([*far, "d00"], agreed.signature))
    assert "1 members agree on this sum but 23 must" in opened.problem


def test_a_run_may_ask_for_more_neighbours_and_a_higher_threshold(
    tmp_path: Path, credentials: dict[str, Enrolled]
) -> None:
    cheat = Cheat(tmp_path / "cheat", credentials, neighbours=36, threshold=0.8)
    near = cheat.part().neighbours
    record = SumRecord("s", {}, roster=cheat.roster)
    assert (len(near), record.graph()) == (36, cheat.part().graph)
    assert record.near("d00", dict.fromkeys(NAMES, b""), 3).keys() == {*near, "d00"}
    short = roster_for(cheat.roster, "d00", cheat.least)
    assert cheat.ask("share", roster=short).sealed.keys() == set(near)
    sealed = {name: cheat.part(name).sealed()["d00"] for name in near}

    # 30 of 37 around it must stay, and sign
    few = [name for name in NAMES if name not in near[:8]]
    assert "29 of 37 members are left in the sum but 30 must be" in cheat.ask("mask", sharers=few).problem
    assert not cheat.ask("mask", sharers=NAMES, sealed=sealed).problem
    agreed = cheat.ask("agree", present=NAMES, signatures=cheat.signed(*near, "d00"))
    assert not agreed.problem
    opened = cheat.ask("open", signatures=dict.fromkeys(near[:29], agreed.signature))
    assert "29 members agree on this sum but 30 must" in opened.problem


def test_a_roster_without_words_that_nobody_looks_at_is_as_good_as_the_whole(
    tmp_path: Path, credentials: dict[str, Enrolled]
) -> None:
    cheat = Cheat(tmp_path / "cheat", credentials)
    short = roster_for(cheat.roster, "d00", cheat.least)

    assert len(unpack_roster(short).members) == NEIGHBOURS + 1
    assert len(short) < 0.8 * len(cheat.roster)
    assert digest_of(short) == digest_of(cheat.roster)
    answer = cheat.ask("share", roster=short)
    assert not answer.problem
    assert answer.sealed.keys() == set(cheat.part().neighbours)


def test_a_neighbour_whose_word_is_left_out_is_refused(tmp_path: Path, credentials: dict[str, Enrolled]) -> None:
    cheat = Cheat(tmp_path / "cheat", credentials)
    short = unpack_roster(roster_for(cheat.roster, "d00", cheat.least))
    near = cheat.part().neighbours[0]
    left = {**short.others, near: cheat.members[near].mark()}
    others = dict(sorted(left.items()))
    roster = Roster([member for member in short.members if member.device != near], others)

    problem = cheat.ask("share", roster=msgspec.msgpack.encode(roster)).problem
    assert f"the word of {near}, which this device must look at, is left out" in problem


def test_two_devices_that_are_told_of_other_far_members_do_not_agree(
    tmp_path: Path, credentials: dict[str, Enrolled]
) -> None:
    cheat = Cheat(tmp_path / "cheat", credentials)
    honest = unpack_roster(roster_for(cheat.roster, "d00", cheat.least))
    for name in honest.others:
        # The ring comes of all marks: who of them stands near may change, and what everybody signs does.
        told = msgspec.msgpack.encode(structs.replace(honest, others={**honest.others, name: bytes(16)}))
        assert digest_of(told) != digest_of(cheat.roster)
    twice = structs.replace(honest, others=dict(sorted({**honest.others, "d00": bytes(16)}.items())))
    assert "twice" in cheat.ask("share", roster=msgspec.msgpack.encode(twice)).problem
