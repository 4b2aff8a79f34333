"""`fedwright simulate`: a config's whole run in this machine, with the same tasks, plans and bytes as over a broker."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from fedwright import __version__
from fedwright.device_runtime import facts
from fedwright.device_runtime.describe.hidden_counts import HiddenCounts, counts_of, without_counts
from fedwright.device_runtime.emulate.profiles import load_fleet, load_profile
from fedwright.device_runtime.train.loop import Evaluation
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.field_types import INSTEAD
from fedwright.protocol.goals import CLASSIFY
from fedwright.protocol.messages import Recipe, Report
from fedwright.protocol.support.files import replace_file
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.check_run import check_hidden
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.engine.cluster import check_ray
from fedwright.server_runtime.evaluate.metrics import fleet_summary, task_summary
from fedwright.server_runtime.methods import registry
from fedwright.server_runtime.methods.base import Method, MethodState, Tensors
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.channel import Channel
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.run_folder.folder import SIMULATED_FILE, folder_of
from fedwright.server_runtime.run_folder.rounds import open_rounds
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Objective, Structure
from fedwright.server_runtime.track.run import RunTracker, tracked
from fedwright.simulation.absences import FrailFleet, Frailty, away_ratios, next_round
from fedwright.simulation.dealing import Dealt, deal, local_data, plain_summary, reserve
from fedwright.simulation.edged_fleet import EdgedFleet, in_turn, make_edge
from fedwright.simulation.local_fleet import LocalFleet, Pool, WorkerPool
from fedwright.simulation.worker import EvaluationJob, Part, WorkerSetup

if TYPE_CHECKING:
    from fedwright.simulation.ray_pool import RayPool

# Devices that share this machine's processors say nothing about deadlines.
FOREVER_S = 1e7
EVALUATIONS = "evaluations.json"
# Parts that are measured once, after the last round, when every device has trained its model alone once more.
AFTER = ("val after", "test after")
# Parts on which a device's own model is measured; others begin with what its next training would.
OWN = ("val", "test")
# A model of more zeros than this is sparse on purpose.
SPARSE = 0.05
# A line for each round: its number and how long it took.
SECONDS = SIMULATED_FILE

Look = Callable[[Method, int], None]
"""Sees a method as it is after a round."""


@dataclass(frozen=True)
class DeviceAccuracy:
    """One device's model after a round, on the device's own data; measures: by what a goal beside classes is judged."""

    device: str
    correct: int
    n: int
    loss: float
    measures: Mapping[str, float] | None = None

    @property
    def accuracy(self) -> float:
        """Share of the samples classified right; 0 without samples, and of numbers."""
        if self.measures is not None:
            return self.measures.get("accuracy", 0.0)
        return self.correct / self.n if self.n else 0.0


@dataclass(frozen=True)
class FleetEvaluation:
    """All devices after a round; `part` says on which part of their data."""

    round: int
    part: Part
    devices: tuple[DeviceAccuracy, ...]

    def summary(self) -> dict[str, float]:
        """The fleet's figures; devices without samples do not count."""
        measured = [device for device in self.devices if device.n]
        if measured and measured[0].measures is not None:
            return task_summary([d.measures or {} for d in measured], [d.n for d in measured])
        return fleet_summary([d.accuracy for d in measured], [d.loss for d in measured], [d.n for d in measured])


@dataclass(frozen=True)
class Simulated:
    """What a simulation leaves: the run's outcome, periodic measurements, seconds per round."""

    outcome: runs.RunOutcome
    evaluations: list[FleetEvaluation]
    round_s: list[float]
    folder: Path


def _deal(config: RunConfig) -> Dealt:
    """The data of the config, dealt; ConfigError for an attack that means nothing to its task."""
    section, goal = config.simulate, config.model.goal
    if goal != CLASSIFY and section.hostile and section.attack in ("label-flip", "back-door"):
        raise ConfigError(
            f"simulate.attack {section.attack!r} is about single classes, but model.task is {goal!r}; choose sign-flip,"
            " scale, random or absence"
        )
    return deal(section, seed=config.run.seed, public=config.public, goal=goal)


def simulate(
    config: RunConfig,
    text: str,
    *,
    observer: events.Observer = events.ignore,
    dealt: Dealt | None = None,
    parts: tuple[Part, ...] = ("test",),
    look: Look | None = None,
) -> Simulated:
    """Run a config to its end in this machine, or go on where an earlier simulation stopped.

    dealt: data other than what the config names. parts: what to measure on every few rounds. look: called with the
    method after each of those rounds.
    """
    dealt = dealt or _deal(config)
    dealt, public = reserve(dealt, config.public, seed=config.run.seed)
    reports = make_reports(config, dealt)
    check_hidden(config, len(reports), setting="the number of simulated devices")
    away = _away(config, list(reports))
    needed = 1 if away else len(reports)
    config = replace(config, fleet=replace(config.fleet, devices=needed, deadline_s=FOREVER_S))
    folder = folder_of(config)
    with tempfile.TemporaryDirectory(prefix="fedwright-simulate-") as data:
        free = {device: report.free_bytes for device, report in reports.items()}
        devices = folder.path / "devices"
        hidden = hide_counts(reports, devices) if config.simulate.hide_counts else {}
        paths = (Path(data), folder.blobs.absolute(), devices.absolute())
        hostile = frozenset(hostile_devices(config.simulate, list(reports)))
        place = WorkerSetup(
            *paths, dealt.classes, dealt.shares, free, dealt.class_names, hostile, config.simulate.attack
        )
        place = replace(place, count_bytes=config.simulate.count_bytes, goal=dealt.goal)
        folder.blobs.mkdir(parents=True, exist_ok=True)
        with (
            _pool(config, dealt, place) as pool,
            tracked(config, text, folder.path, observer) as tracker,
        ):
            watch = _Watch(config, pool, folder.path, tracker, parts, look)

            def talk(blobs: BlobStore) -> Channel:
                # What a process of this run puts there need not be hashed again where it is read.
                pool.blobs = blobs
                local = LocalFleet(reports, pool, devices=devices, hidden=hidden)
                if away:
                    frailty = Frailty(away, config.run.seed, next_round(folder, config.store.database))
                    local = FrailFleet(reports, pool, frailty, devices=devices, hidden=hidden)
                if not config.simulate.edges:
                    return local
                places = in_turn(list(reports), config.simulate.edges)
                edges = {e: make_edge(e, config.simulate, folder.path / e, blobs) for e in set(places.values())}
                return EdgedFleet(local, places, blobs=blobs, edges=edges)

            access = runs.FleetAccess(
                talk, watch, watch.begin, sync=False, public=public, kind="simulated", claimed=tracker.begin
            )
            # Workers that wait for devices' tasks do the server's work as well.
            access = replace(access, engine=pool.engine)
            outcome = runs.conduct(config, text, access)
            tracker.finish(outcome.model, outcome.devices)
    return Simulated(outcome, watch.evaluations, watch.round_s, folder.path)


def _away(config: RunConfig, devices: list[str]) -> dict[str, float]:
    """How much of the time each device is away; ConfigError where they are counted on."""
    away = away_ratios(config.simulate.profiles, devices)
    if away and config.privacy.kind == "central":
        raise ConfigError(
            "privacy.kind 'central' needs a fixed number of devices, but some of simulate.profiles go away; take others"
        )
    return away


def _pool(config: RunConfig, dealt: Dealt, place: WorkerSetup) -> "WorkerPool | RayPool":
    """Who does the work of devices: processes of this machine, or a cluster."""
    if config.engine.kind == "local":
        return WorkerPool(dealt, place, processes=_processes(config.simulate))
    # Ray is there only for who asks for it.
    check_ray()
    from fedwright.simulation.ray_pool import RayPool

    return RayPool(dealt, place, config.engine)


def _processes(section: SimulateSection) -> int:
    """How many beside this one; one for each core unless the config says."""
    return (os.cpu_count() or 1) if section.processes is None else section.processes


def hostile_devices(section: SimulateSection, devices: Sequence[str]) -> list[str]:
    """Those of the devices that are hostile: the first of them."""
    return sorted(devices)[: section.hostile]


def make_reports(config: RunConfig, dealt: Dealt) -> dict[str, Report]:
    """What each simulated device would report; a fleet of profiles gives it that board's memory."""
    board, free_bytes = facts.board(threads=1), facts.free_bytes()
    names: list[str] = []
    if config.simulate.profiles is not None:
        names = list(load_fleet(config.simulate.profiles).profiles(len(dealt.shares)))
    reports = {}
    # Facts that no run of this method asks for take long to make for thousands of devices.
    wanted = registry.find(config.method.name).method.wanted_facts
    asked = wanted is not Method.wanted_facts or config.simulate.hide_counts
    absent = hostile_devices(config.simulate, list(dealt.shares)) if config.simulate.attack == "absence" else []
    for number, (device, share) in enumerate(dealt.shares.items()):
        if not len(share.train):
            raise ConfigError(f"simulated device {device} got nothing to train on; take fewer devices or more data")
        reports[device] = Report(
            sums=True,
            codecs=list(INSTEAD),
            sums_noise=True,
            parts=True,
            agent=__version__,
            board=structs.replace(board, profile=names[number]) if names else board,
            free_bytes=load_profile(names[number]).memory_bytes if names else free_bytes,
            data=local_data(dealt, device).summary() if asked else plain_summary(dealt, device),
            trains=number < len(dealt.shares) - config.simulate.bystanders and device not in absent,
        )
    return reports


def hide_counts(reports: dict[str, Report], folder: Path) -> dict[str, HiddenCounts]:
    """Take the counts out of the reports; what each device needs for sums that hide them."""
    hidden = {}
    for device, report in reports.items():
        hidden[device] = made = HiddenCounts(device, counts_of(report.data), folder=folder / device)
        reports[device] = structs.replace(report, data=without_counts(report.data), **made.offer())
    return hidden


@dataclass
class _Watch:
    """Passes events on and measures every device every few rounds, outside of the run's own plan."""

    config: RunConfig
    pool: Pool
    folder: Path
    tracker: RunTracker
    parts: tuple[Part, ...]
    look: Look | None = None
    evaluations: list[FleetEvaluation] = field(default_factory=list)
    round_s: list[float] = field(default_factory=list)
    method: Method | None = None
    planner: Planner | None = None

    def begin(self, method: Method, planner: Planner) -> None:
        """Take up the measurements that an earlier process made."""
        self.method, self.planner = method, planner
        measured, seconds = self.folder / EVALUATIONS, self.folder / SECONDS
        if measured.exists():
            self.evaluations = msgspec.json.decode(measured.read_bytes(), type=list[FleetEvaluation])
        if seconds.exists():
            self.round_s = [float(line.split()[1]) for line in seconds.read_text().splitlines()]
        self._catch_up(method, planner)

    def _catch_up(self, method: Method, planner: Planner) -> None:
        """Measure the round after whose end an earlier process stopped, if it did not."""
        with closing(open_rounds(folder_of(self.config), self.config.store.database)) as store:
            closed = [entry for entry in store.closed() if entry.metrics][-1:]
        measured = {entry.round for entry in self.evaluations}
        for entry in closed:
            if self._is_due(entry.position.round) and entry.position.round not in measured:
                method.restore(MethodState.read(planner.blobs.path(entry.state)))
                self._measure(entry.position.round)

    def __call__(self, event: events.Event) -> None:
        """Take an event of the run."""
        closed = event if isinstance(event, events.RoundClosed) else None
        if closed is not None:
            self._note(closed)
        self.tracker.observe(event)
        if closed is not None and self._is_due(closed.round):
            self._measure(closed.round)

    def _note(self, closed: events.RoundClosed) -> None:
        """Keep how long a round took, before anybody can stop here."""
        self.round_s.append(closed.seconds)
        with (self.folder / SECONDS).open("a", encoding="utf-8") as file:
            file.write(f"{closed.round} {closed.seconds}\n")

    def _is_due(self, number: int) -> bool:
        every = self.config.simulate.evaluate_every
        return number == self.config.run.rounds or bool(every and number % every == 0)

    def _measure(self, number: int) -> None:
        if self.method is None or self.planner is None:
            return
        last = number == self.config.run.rounds
        parts = tuple(part for part in self.parts if last or part not in AFTER)
        found = measure_fleet(self.method, self.planner, self.pool, at=Moment(self.config, number, parts))
        self.evaluations += found
        for entry in found:
            self.tracker.measured(number, entry.part, entry.summary())
        replace_file(self.folder / EVALUATIONS, msgspec.json.encode(self.evaluations))
        if self.look is not None:
            self.look(self.method, number)


@dataclass(frozen=True)
class Moment:
    """A round after which the fleet is measured, and on which parts of its data."""

    config: RunConfig
    number: int
    parts: tuple[Part, ...]

    def own_training(self, device: str) -> Recipe:
        """What a device does with its model alone, where it is measured after that: a round's training once more."""
        train, seed = self.config.train, derive_seed(self.config.run.seed, "own training", device)
        return Recipe(train.batch, train.learning_rate, seed, epochs=train.epochs, steps=train.steps)

    def structure(self, spec: ModelSpec, weights: Tensors, part: Part) -> Structure:
        """As a model is measured; a sparse one that is trained before keeps its zeros."""
        if part not in AFTER:
            return Structure(spec)
        matrices = [value for value in weights.values() if value.ndim > 1]
        zeros = sum(int((value == 0).sum()) for value in matrices) / max(1, sum(value.size for value in matrices))
        return Structure(spec, Objective(element_masks=zeros > SPARSE), self.config.train.optimizer)


def measure_fleet(method: Method, planner: Planner, pool: Pool, *, at: Moment) -> list[FleetEvaluation]:
    """Each device's own model, at its own width, on the device's own data, with the layers it keeps to itself."""
    kept: dict[int, tuple[Tensors, str]] = {}
    packed: dict[Structure, str] = {}
    jobs: dict[Part, list[EvaluationJob]] = {part: [] for part in at.parts}
    for device in pool.devices:
        for part in at.parts:
            spec, weights = method.model_of(device) if part in OWN else method.start_of(device)
            if id(weights) not in kept:
                # The dictionary is kept too: its id must not go to another one while ids are compared.
                kept[id(weights)] = (weights, pool.models.put_bytes(tensors.save(weights)))
            structure = at.structure(spec, weights, part)
            if structure not in packed:
                packed[structure] = pool.models.put_bytes(artifacts.pack(planner.builder.build(structure)))
            job = EvaluationJob(
                device,
                packed[structure],
                kept[id(weights)][1],
                part,
                run=planner.run_key,
                personal=method.personal_layers(device),
                class_names=planner.class_names,
                own=at.own_training(device) if part in AFTER else None,
            )
            jobs[part].append(job)
    results = [_evaluated(at.number, part, pool.measure(own)) for part, own in jobs.items()]
    for _, sha256 in kept.values():
        pool.models.remove(sha256)
    return results


def _evaluated(number: int, part: Part, found: list[tuple[str, Evaluation]]) -> FleetEvaluation:
    devices = tuple(DeviceAccuracy(device, e.correct, e.n, e.loss, e.measures) for device, e in found)
    return FleetEvaluation(number, part, devices)
