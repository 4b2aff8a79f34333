"""What a sum of changes costs one device: its processor time and its bytes, with as many members as one likes.

The measured device is a real one with a real disk; of the others only what it gets to see is made.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fedwright.device_runtime.secure.credentials import Enrolled, SumCredentials, Unenrolled
from fedwright.device_runtime.secure.summed_task import work_of
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.protocol import codec, deltas
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.errors import RoundError
from fedwright.protocol.link.security import Bundle, BundleInfo
from fedwright.protocol.messages import BlobRef, Effort, Recipe, Returns, Stats, SumAnswer, SumAsk, SumTerms, Task
from fedwright.protocol.secure.graph import looked_at
from fedwright.protocol.secure.part import ROOT_BYTES, Part, public_keys
from fedwright.protocol.secure.roster import Member, agreed_word, masked_word, pack_roster, roster_for
from fedwright.server_runtime.fleet.authority import Authority

OWN, SESSION, LEAST = "d0000", "s", 3


@dataclass
class SumCost:
    """Of one device in one sum."""

    cpu_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Both ways."""
        return self.sent_bytes + self.received_bytes


@dataclass
class Members:
    """Everybody in a sum but the measured device; enrolled by an authority, or not."""

    count: int
    folder: Path
    enrolled: bool
    roots: dict[str, bytes] = field(default_factory=dict)
    who: dict[str, SumCredentials] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make them."""
        authority = Authority.create(self.folder / "trust") if self.enrolled else None
        rng = np.random.default_rng(self.count)
        for number in range(self.count):
            name = f"d{number:04}"
            self.roots[name] = rng.bytes(ROOT_BYTES)
            self.who[name] = Unenrolled() if authority is None else _enrolled(authority, name, self.folder)

    def member(self, name: str, work: bytes) -> Member:
        """One of them, with keys for the sum."""
        keys = public_keys(self.roots[name])
        member = Member(name, SESSION, *keys, certificate=self.who[name].certificate, work=work)
        return structs.replace(member, signature=self.who[name].sign(member.word()))


def _enrolled(authority: Authority, name: str, folder: Path) -> Enrolled:
    made = authority.issue_device(name, folder / "bundles" / name)
    return Enrolled(
        Bundle(BundleInfo(name, "f", "mqtts://localhost:8883", "00" * 32), authority.ca, made.cert, made.key)
    )


def measure(count: int, length: int, *, enrolled: bool) -> SumCost:
    """The cost of a sum of so many members over so many entries."""
    with tempfile.TemporaryDirectory(prefix="fedwright-sum-") as name:
        return _Measured(Members(count, Path(name), enrolled), length).run()


class _Measured:
    def __init__(self, others: Members, length: int) -> None:
        self._others = others
        self._cost = SumCost()
        folder = others.folder / OWN
        folder.mkdir()
        ref = make_ref(b"what all of them train")
        terms = SumTerms("group", LEAST, 8.0, Effort(8))
        fixed: dict[str, Any] = {"boot": "b", "run": "r", "round": 1, "deadline_s": 10.0}
        self._task = Task(
            task="t", artifact=ref, weights=ref, recipe=Recipe(8, 0.1, 1), returns=Returns(), sum=terms, **fixed
        )
        self._device = SecureSums(OWN, folder, others.who[OWN])
        change = np.random.default_rng(0).normal(0, 0.01, length).astype(np.float32)
        change.tofile(folder / "result")
        self._device.take(self._task, Stats(1, 1, 0.0, 0.0, 0), folder / "result")

    def run(self) -> SumCost:
        """All stages, in which nobody leaves."""
        others, work = self._others, work_of(self._task)
        names = sorted(others.roots)
        own = self._ask("keys").member
        if own is None:
            raise RoundError("the measured device gave no keys; this is a mistake in the program")
        roster = pack_roster([own, *(others.member(name, work) for name in names if name != OWN)])
        self._ask("share", roster=roster_for(roster, OWN, LEAST))
        graph = Part(names[1], others.roots[names[1]], roster).graph
        sealed = {name: Part(name, others.roots[name], roster).sealed()[OWN] for name in graph[OWN]}
        self._ask("mask", sharers=names, sealed=sealed)
        digest = Part(names[1], others.roots[names[1]], roster).digest
        masked, agreed = masked_word(digest, names), agreed_word(digest, names, names)
        around = sorted({OWN, *looked_at(names, digest, OWN, LEAST)})
        self._ask("agree", present=names, signatures={name: others.who[name].sign(masked) for name in around})
        self._ask("open", signatures={name: others.who[name].sign(agreed) for name in around})
        return self._cost

    def _ask(self, stage: Any, **more: Any) -> SumAnswer:
        ask = SumAsk(SESSION, "b", stage, "t", **more)
        began = time.process_time()
        answer = self._device.answer(ask, self._offer)
        self._cost.cpu_s += time.process_time() - began
        if answer.problem:
            raise RoundError(f"the measured device refused ({stage}): {answer.problem}")
        self._cost.received_bytes += len(codec.encode(ask, sender="server", boot="b"))
        self._cost.sent_bytes += len(codec.encode(answer, sender=OWN, boot="b"))
        return answer

    def _offer(self, data: bytes, chunk_bytes: int) -> BlobRef:
        self._cost.sent_bytes += len(data)
        return make_ref(data, chunk_bytes=chunk_bytes, inline=False)


def plain(length: int, *, clock: Callable[[], float] = time.process_time) -> SumCost:
    """The cost of sending the change itself, as float32."""
    change = np.random.default_rng(0).normal(0, 0.01, length).astype(np.float32)
    began = clock()
    blob = deltas.encode({"w": change})
    ref = make_ref(blob, inline=False)
    cpu_s = clock() - began
    del ref
    return SumCost(cpu_s, len(blob))
