"""`fedwright bench chaos`: kill server, devices, broker and edges, cut the link; compare with a run in peace.

Everything is real: a broker, a server process that is resumed after each kill, and agent processes behind a link that
can be cut and on which messages come late, twice, out of order and damaged. Most kills wait for a drawn moment of the
server or of a device (`chaos_moments`), the others come at any time; the server's disk is full now and then. A run
counts as unharmed when no update is lost, none is counted twice (by the books that the method keeps in its state,
`chaos_server`) and the final state has the bytes of the undisturbed run. Of each update that is lost the table has the
reason the server wrote down. Kills are shared equally among the victims and go on over all methods, or those that
`--methods` names, a few runs at a time, until there are as many as `--kills` asks for. Finished runs are kept, so that
a bench that was stopped goes on where it was.
"""

import argparse
import hashlib
import itertools
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from fedwright.benchmarks.harness.chaos_fleet import DEVICES, ChaosFleet, Plan, chaos_fleet
from fedwright.benchmarks.harness.faulty_wire import FAULTS, FaultyWire
from fedwright.benchmarks.harness.kept_jobs import place_named
from fedwright.benchmarks.processes import chaos_moments
from fedwright.benchmarks.processes.chaos_server import BOOKS
from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import RoundError
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.support.steps import steps, tell
from fedwright.server_runtime.methods.base import MethodState
from fedwright.server_runtime.methods.registry import METHODS, find
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run_folder.folder import RunFolder

ROUNDS = 6
VICTIMS = ("server", "device", "broker", "link", "edge")
# A run makes no more kills than this, so that it ends.
MOST_KILLS = 24
# One kill in so many comes at any time instead of a drawn moment, after a pause of this long.
ANY_TIME = 4
PAUSE_S = (0.05, 1.5)
AWAY_S = (0.0, 0.5)
# A moment that a run does not come to is not waited for longer.
MOMENT_S = 8.0
# A moment that a run is sure to come to.
RUN_MOMENT_S = 120.0
DISK_EVERY = 12
# Most of a run is waiting: for moments, for what was killed, for what is away.
AT_ONCE = 3


class Kill(msgspec.Struct, frozen=True):
    """Who was killed, and at which moment of which process; `aimed` when that moment was waited for."""

    victim: str
    moment: str
    aimed: bool


class ChaosOutcome(msgspec.Struct, frozen=True):
    """What became of one run; problem: why it did not end; losses: how each update was lost."""

    rounds: int
    digest: str
    lost: int
    twice: int
    updates: int
    kills: list[Kill] = []
    faults: dict[str, int] = {}
    full_disks: int = 0
    problem: str = ""
    losses: list[str] = []


class _Tried(msgspec.Struct, frozen=True):
    """One disturbed run beside the one in peace."""

    method: str
    seed: int
    outcome: ChaosOutcome
    same: bool


def run(args: argparse.Namespace) -> dict[str, Any]:
    """As many runs as it takes for `--kills` kills; `--quick` makes eight of them with FedAvg alone."""
    wanted = args.kills if args.kills is not None else 8 if args.quick else 40
    methods = args.methods or (["fedavg"] if args.quick else sorted(METHODS))
    for method in methods:
        find(method)
    edges = args.edges or 0
    victims = VICTIMS if edges else VICTIMS[:-1]
    target = -(-wanted // len(victims))
    books = _Count(methods, victims, target)
    whole = target * len(victims)
    with steps("kills", whole), ThreadPoolExecutor(AT_ONCE) as pool:

        def work() -> None:
            while (following := books.following()) is not None:
                method, seed, left = following
                books.add(_disturbed(method, seed, edges, left))
                tell("kills", books.kills(), whole)

        for worker in [pool.submit(work) for _ in range(AT_ONCE)]:
            worker.result()
    return _result(sorted(books.tried, key=lambda one: (one.seed, one.method)), victims, target)


class _Count:
    """Runs that are done and kills that are left; every method has a run with the first seed, then with the next."""

    def __init__(self, methods: Sequence[str], victims: Sequence[str], target: int) -> None:
        self.tried: list[_Tried] = []
        self._methods, self._victims, self._target = methods, victims, target
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def following(self) -> tuple[str, int, dict[str, int]] | None:
        """Method and seed of the next run with the kills that are left for each victim; None when it was enough."""
        with self._lock:
            made = Counter(kill.victim for one in self.tried for kill in one.outcome.kills)
            left = {victim: self._target - made[victim] for victim in self._victims if made[victim] < self._target}
            number = next(self._numbers)
            if number >= len(self._methods) and not left:
                return None
            return self._methods[number % len(self._methods)], 1 + number // len(self._methods), left

    def add(self, one: _Tried) -> None:
        """A run has ended."""
        with self._lock:
            self.tried.append(one)

    def kills(self) -> int:
        """How many there were so far."""
        with self._lock:
            return sum(len(one.outcome.kills) for one in self.tried)


def _disturbed(method: str, seed: int, edges: int, left: dict[str, int]) -> _Tried:
    peace = _kept(Plan(method, ROUNDS, edges))
    outcome = _kept(Plan(method, ROUNDS, edges, faulty=seed), left, seed=seed, digest=peace.digest)
    return _Tried(method, seed, outcome, outcome.digest == peace.digest and outcome.updates == peace.updates)


def _kept(plan: Plan, left: dict[str, int] | None = None, *, seed: int = 0, digest: str = "") -> ChaosOutcome:
    """What a run came to, or what is kept of it since an earlier start of this bench; logs of a harmed one stay."""
    place = place_named(["chaos", msgspec.to_builtins(plan), seed])
    if place is None:
        return play(plan, left, seed=seed)
    if place.exists():
        return msgspec.json.decode(place.read_bytes(), type=ChaosOutcome)
    logs = place.with_suffix(".logs")
    outcome = play(plan, left, seed=seed, logs=logs)
    if not outcome.problem and digest in ("", outcome.digest):
        shutil.rmtree(logs)
    replace_file(place, msgspec.json.encode(outcome))
    return outcome


def play(
    plan: Plan,
    left: dict[str, int] | None = None,
    *,
    seed: int = 0,
    logs: Path | None = None,
    at: Sequence[tuple[str, str]] = (),
) -> ChaosOutcome:
    """One run from start to end; left: of which victims so many more kills are wanted; logs: where to keep them.

    at: processes that are killed first, one after the other, each when it comes to this moment.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedwright-chaos-")))
        fleet = stack.enter_context(chaos_fleet(folder, plan))
        trouble = _Trouble(fleet, random.Random(f"{plan.method} {seed}"))
        for name, moment in at:
            trouble.kill_at(name, moment)
        if left:
            trouble.make(dict(left))
        try:
            fleet.finish()
            found = _outcome(fleet.run_folder)
        except RoundError as err:
            found = ChaosOutcome(0, "", 0, 0, 0, problem=str(err))
        faults = dict(fleet.proxy.faults) if isinstance(fleet.proxy, FaultyWire) else {}
        if logs is not None:
            fleet.keep_logs(logs)
        return msgspec.structs.replace(found, kills=trouble.kills, faults=faults, full_disks=trouble.full_disks)


class _Trouble:
    """Does harm to a fleet at drawn moments, and writes down what it did."""

    def __init__(self, fleet: ChaosFleet, rng: random.Random) -> None:
        self._fleet = fleet
        self._rng = rng
        self.kills: list[Kill] = []
        self.full_disks = 0

    def make(self, left: dict[str, int]) -> None:
        """Kill until nothing is left to be killed, the run is over or it was enough for one run."""
        while any(left.values()) and len(self.kills) < MOST_KILLS and self._fleet.running(0.01):
            if not self._rng.randrange(DISK_EVERY):
                self.full_disks += self._fleet.fill_disk(self._rng)
            victim = self._rng.choice([victim for victim, most in left.items() if most])
            if (kill := self._kill(victim)) is not None:
                self.kills.append(kill)
                left[victim] -= 1

    def kill_at(self, name: str, moment: str) -> None:
        """Kill the server or a device when it is there."""
        watched, victim = self._fleet.watched(name), "device" if name in DEVICES else name
        if watched.wait(moment, self._fleet.running, wait_s=RUN_MOMENT_S) and self._do(victim, name):
            self.kills.append(Kill(victim, moment, True))
        watched.release()

    def _kill(self, victim: str) -> Kill | None:
        """Wait for a moment, then kill; None when the run was over before or the kill would be unfair."""
        name = self._rng.choice(["server", *DEVICES])
        device = name if name in DEVICES else self._rng.choice(DEVICES)
        if victim in ("server", "device"):
            name = "server" if victim == "server" else device
        watched, aimed = self._fleet.watched(name), False
        if self._rng.randrange(ANY_TIME):
            moments = chaos_moments.SERVER if name == "server" else chaos_moments.DEVICE
            aimed = watched.wait(self._rng.choice(moments), self._fleet.running, wait_s=MOMENT_S)
        elif not self._fleet.running(self._rng.uniform(*PAUSE_S)):
            return None
        moment = watched.last()
        done = self._fleet.running(0.0) and self._do(victim, device)
        watched.release()
        return Kill(victim, moment, aimed) if done else None

    def _do(self, victim: str, device: str) -> bool:
        away_s = self._rng.uniform(*AWAY_S)
        if victim == "device":
            return self._fleet.kill_device(device)
        if victim == "server":
            self._fleet.kill_server()
        elif victim == "edge":
            self._fleet.kill_edge(self._rng.choice(self._fleet.edges))
        elif victim == "broker":
            self._fleet.kill_broker(away_s)
        else:
            self._fleet.cut_link(away_s)
        return True


def _outcome(folder: RunFolder) -> ChaosOutcome:
    store = SqliteRoundStore(folder.store)
    try:
        closed = store.closed()
        planned = [planned.task.task for stage in closed for planned in store.plan(stage.position) or []]
        state = MethodState.read(BlobStore(folder.blobs).path(closed[-1].state))
        absorbed = state.record(BOOKS, list[str])
        lost, twice = reckon(planned, absorbed)
        rounds = len({stage.position.round for stage in closed})
        digest = hashlib.sha256(tensors.save(state.tensors)).hexdigest()
        losses = [_loss(store, task) for task in planned if task not in absorbed]
        return ChaosOutcome(rounds, digest, lost, twice, updates=len(set(absorbed)), losses=losses)
    finally:
        store.close()


def _loss(store: SqliteRoundStore, task: str) -> str:
    reply = store.reply(task)
    return "no word on it" if reply is None else f"{reply.outcome}: {reply.detail}"


def reckon(planned: Sequence[str], absorbed: Sequence[str]) -> tuple[int, int]:
    """How many tasks of closed rounds are not in the final state, and how often one is in it that was before."""
    counts = Counter(absorbed)
    return sum(not counts[task] for task in planned), sum(count - 1 for count in counts.values())


def _result(tried: Sequence[_Tried], victims: Sequence[str], target: int) -> dict[str, Any]:
    kills = [kill for one in tried for kill in one.outcome.kills]
    of_victim = Counter(kill.victim for kill in kills)
    faults = sum((Counter(one.outcome.faults) for one in tried), Counter[str]())
    full_disks = sum(one.outcome.full_disks for one in tried)
    return {
        "seeds": sorted({one.seed for one in tried}),
        "tables": {
            "kills": [{"victim": victim, "kills": of_victim[victim]} for victim in victims],
            "moments": _moments(kills, victims),
            "messages": [{"fault": fault, "times": faults[fault]} for fault in FAULTS]
            + [{"fault": "full disk", "times": full_disks}],
            "runs": [_row(one) for one in tried],
        },
        "shown": ["kills", "moments", "messages"],
        "checks": [
            *(_check(f"kills of {victim}", of_victim[victim], target, least=True) for victim in victims),
            _check("kills in all", len(kills), target * len(victims), least=True),
            _check("runs that ended", sum(not one.outcome.problem for one in tried), len(tried)),
            _check("updates lost", sum(one.outcome.lost for one in tried), 0),
            _check("updates counted twice", sum(one.outcome.twice for one in tried), 0),
            _check("rounds finished", sum(one.outcome.rounds for one in tried), ROUNDS * len(tried)),
            _check("runs that end with the bytes of the undisturbed one", sum(one.same for one in tried), len(tried)),
        ],
    }


def _moments(kills: Sequence[Kill], victims: Sequence[str]) -> list[dict[str, Any]]:
    """How often each victim was killed at which moment, and how many of these were waited for."""
    counts = Counter((kill.moment, kill.victim) for kill in kills)
    aimed = Counter(kill.moment for kill in kills if kill.aimed)
    moments = (chaos_moments.START, *chaos_moments.SERVER, *chaos_moments.DEVICE)
    return [
        {"moment": moment, **{victim: counts[moment, victim] for victim in victims}, "aimed": aimed[moment]}
        for moment in moments
    ]


def _row(one: _Tried) -> dict[str, Any]:
    return {
        "method": one.method,
        "seed": one.seed,
        "kills": len(one.outcome.kills),
        "faulty messages": sum(one.outcome.faults.values()),
        "rounds finished": one.outcome.rounds,
        "updates": one.outcome.updates,
        "updates lost": one.outcome.lost,
        "counted twice": one.outcome.twice,
        "same bytes": one.same,
        "problem": one.outcome.problem or "; ".join(one.outcome.losses),
    }


def _check(name: str, value: int, target: int, *, least: bool = False) -> dict[str, Any]:
    holds = value >= target if least else value == target
    return {"name": name, "value": value, "target": target, "holds": holds}
