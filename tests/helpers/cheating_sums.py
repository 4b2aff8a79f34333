"""Real devices in sums, and a server that asks them what it likes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.device_runtime.secure.credentials import Enrolled
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link.security import SERVER_NAME, Bundle, BundleInfo
from fedwright.protocol.messages import BlobRef, Effort, Recipe, Returns, Stats, SumAnswer, SumAsk, SumTerms, Task
from fedwright.protocol.secure.roster import Member, pack_roster
from fedwright.server_runtime.fleet.authority import Authority

LENGTH, REACH = 50, 1.0
NAMES = [f"d{number}" for number in range(6)]
TERMS = SumTerms("group", least=4, reach=REACH, effort=Effort(8))


def make_bundles(folder: Path) -> dict[str, Bundle]:
    """Devices and a server of one authority, and `mallory` of another."""
    found = {}
    for place, names in (("ours", [*NAMES, SERVER_NAME]), ("theirs", ["mallory"])):
        authority = Authority.create(folder / place)
        for name in names:
            made = authority.issue_device(name, folder / "bundles" / name)
            info = BundleInfo(name, "fleet", "mqtts://localhost:8883", "00" * 32)
            found[name] = Bundle(info, authority.ca, made.cert, made.key)
    return found


def task_of(name: str, **changes: Any) -> Task:
    ref = make_ref(b"what all of them train")
    fields: dict[str, Any] = {"task": f"t-{name}", "recipe": Recipe(8, 0.1, 1), "returns": Returns(), "sum": TERMS}
    fixed = {"boot": "b", "run": "r", "round": 1, "artifact": ref, "weights": ref, "deadline_s": 10.0}
    return Task(**{**fixed, **fields, **changes})


class Cheat:
    """Real devices with a change each, and a server that asks them what it likes."""

    def __init__(self, folder: Path, bundles: dict[str, Bundle]) -> None:
        self.folder, self.bundles = folder, bundles
        rng = np.random.default_rng(3)
        self.rows = {name: rng.uniform(-REACH, REACH, LENGTH).astype(np.float32) for name in NAMES}
        self.blobs: dict[str, bytes] = {}
        self.devices: dict[str, SecureSums] = {}
        for name in NAMES:
            (folder / name).mkdir(parents=True)
            self.give(name, task_of(name))

    def give(self, name: str, task: Task) -> None:
        """A device has done a task."""
        self.devices[name] = SecureSums(name, self.folder / name, Enrolled(self.bundles[name]))
        file = self.folder / name / "result"
        self.rows[name].tofile(file)
        self.devices[name].take(task, Stats(1, 1, 0.0, 0.0, 0), file)

    def restart(self) -> None:
        """All devices lose their power; what they know is on their disks."""
        for name in NAMES:
            self.devices[name] = SecureSums(name, self.folder / name, Enrolled(self.bundles[name]))

    def ask(self, name: str, stage: str, session: str = "s", **more: Any) -> SumAnswer:
        def offer(data: bytes, chunk_bytes: int) -> BlobRef:
            self.blobs[name] = data
            return make_ref(data)

        return self.devices[name].answer(SumAsk(session, "b", stage, f"t-{name}", **more), offer)  # type: ignore[arg-type]

    def members(self, names: Sequence[str] = NAMES, session: str = "s") -> list[Member]:
        found = [self.ask(name, "keys", session).member for name in names]
        return [member for member in found if member is not None]

    def share(self, names: Sequence[str] = NAMES, session: str = "s") -> None:
        self.roster = pack_roster(self.members(names, session))
        self.shared = {name: self.ask(name, "share", session, roster=self.roster) for name in names}

    def sealed_for(self, name: str) -> dict[str, bytes]:
        return {owner: answer.sealed[name] for owner, answer in self.shared.items() if name in answer.sealed}

    def mask(self, names: Sequence[str] = NAMES, session: str = "s") -> None:
        sharers = sorted(self.shared)
        self.masked = {
            name: self.ask(name, "mask", session, sharers=sharers, sealed=self.sealed_for(name)) for name in names
        }
        self.signed = {name: answer.signature for name, answer in self.masked.items()}

    def agree(self, names: Sequence[str] = NAMES, session: str = "s") -> dict[str, bytes]:
        answers = {
            name: self.ask(name, "agree", session, present=list(names), signatures=self.signed) for name in names
        }
        return {name: answer.signature for name, answer in answers.items()}


def refused(answer: SumAnswer, why: str) -> None:
    """Nothing but a sentence came back."""
    assert why in answer.problem
    assert answer == SumAnswer(answer.sum, answer.stage, problem=answer.problem)
