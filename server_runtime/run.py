"""Puts a run together: folder, store, method and coordinator, from a config or from what an earlier process left."""

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedwright.protocol import codec
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.base import Link
from fedwright.protocol.support.metrics import served_metrics
from fedwright.server_runtime.artifacts.builder import Builder
from fedwright.server_runtime.artifacts.standalone import export_model
from fedwright.server_runtime.blocks.torch_device import choose_device, limit_memory
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.engine.cluster import open_engine
from fedwright.server_runtime.fleet.device_keys import DeviceKeys
from fedwright.server_runtime.fleet.epoch import next_epoch
from fedwright.server_runtime.fleet.expiry import expiries_in
from fedwright.server_runtime.fleet.revocation import Gate
from fedwright.server_runtime.fleet.trust import Authority, read_edges
from fedwright.server_runtime.method_setting import infer_spec, make_run_data, make_setting
from fedwright.server_runtime.methods import registry
from fedwright.server_runtime.methods.base import Method, Setting
from fedwright.server_runtime.needed_packages import check_accounting
from fedwright.server_runtime.public_data.examples import PublicData, numbered_as
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.asynchronous import AsynchronousCoordinator
from fedwright.server_runtime.rounds.audit import Custody, audited
from fedwright.server_runtime.rounds.channel import Channel
from fedwright.server_runtime.rounds.coordinator import Coordinator
from fedwright.server_runtime.rounds.device_records import device_records
from fedwright.server_runtime.rounds.notices import noticed
from fedwright.server_runtime.rounds.orders import OrderBook
from fedwright.server_runtime.rounds.planner import Patches, Planner
from fedwright.server_runtime.rounds.privacy.round_privacy import hiding_of, model_notes, privacy_of
from fedwright.server_runtime.rounds.secure.options import secure_options
from fedwright.server_runtime.rounds.stage import RoundOptions
from fedwright.server_runtime.rounds.store.base import Kind, RoundStore, RunRecord
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.rounds.store.storage_errors import plain_storage_errors
from fedwright.server_runtime.rounds.task_tracker import TaskTracker
from fedwright.server_runtime.rounds.update_reader import UpdateReader
from fedwright.server_runtime.run_folder.blobs import claim_blobs
from fedwright.server_runtime.run_folder.folder import folder_of, record_run
from fedwright.server_runtime.run_folder.rounds import Claim, claim_rounds
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.server_runtime.track.run import tracked
from fedwright.server_runtime.transport.device_channel import DeviceChannel
from fedwright.server_runtime.transport.edge_routes import ANYBODY, EdgeRights
from fedwright.server_runtime.watch.live import shown_live
from fedwright.server_runtime.watch.metrics import RunFigures
from fedwright.server_runtime.watch.missed_events import missed_events

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FleetAccess:
    """How the server meets its devices: over a link, or in this process.

    started: gets the method and the planner before the first round. sync: False outlives a kill but not a power cut.
    public: the server's own examples, where they do not come from a file that the config names. kind: of the run.
    claimed: called once the run is this server's, before anything is written. engine: for the server's own work, where
    one is open already.
    """

    talk: Callable[[BlobStore], Channel]
    observer: events.Observer = events.ignore
    started: Callable[[Method, Planner], None] = lambda method, planner: None
    sync: bool = True
    dismiss: bool = True
    public: PublicData | None = None
    kind: Kind = "served"
    claimed: Callable[[], None] = lambda: None
    engine: Executor | None = None


@dataclass(frozen=True)
class RunOutcome:
    """What a finished run leaves."""

    devices: dict[str, DeviceRecord]
    metrics: list[dict[str, float]]
    model: Path | None


def execute(
    config: RunConfig,
    text: str,
    *,
    link: Link | Callable[[], Link],
    observer: events.Observer = events.ignore,
    dismiss: bool = True,
) -> RunOutcome:
    """Run a config to its end, or go on where an earlier process stopped; `text` is the config as written.

    link: to the broker, or what makes it once the run is this server's.
    """

    folder = folder_of(config).path
    figures = RunFigures(folder, expiries=expiries_in(config.fleet.trust))

    def talk(blobs: BlobStore) -> Channel:
        figures.link = link() if callable(link) else link
        channel = DeviceChannel(
            figures.link,
            config.fleet.name,
            blobs=blobs,
            sign=_signer(config),
            edge_rights=_edge_rights(config),
        )
        if config.fleet.trust is not None:
            channel.gate = Gate(Path(config.fleet.trust))
            channel.require_signatures(DeviceKeys(Path(config.fleet.trust)).verify)
            channel.order = codec.Order(next_epoch(Path(config.fleet.trust)))
        return channel

    with served_metrics(config.metrics.listen, figures.endpoint()), tracked(config, text, folder, observer) as tracker:
        outcome = conduct(config, text, FleetAccess(talk, tracker.observe, dismiss=dismiss, claimed=tracker.begin))
        tracker.finish(outcome.model, outcome.devices)
        return outcome


def conduct(config: RunConfig, text: str, fleet: FleetAccess) -> RunOutcome:
    """`execute` over any way to speak with devices."""
    check_accounting(config)
    folder, stood = folder_of(config), list[str]()
    waiting = partial(_stand_by, fleet.observer, stood)
    with plain_storage_errors(folder.store), ExitStack() as stack:
        folder.path.mkdir(parents=True, exist_ok=True)
        url, bucket = config.store.database, config.store.blobs is not None
        claim = stack.enter_context(claim_rounds(folder, url, sync=fleet.sync, waiting=waiting, bucket=bucket))
        fleet.claimed()
        store = claim.store
        config = as_ordered(config, text, store.run()) if stood else config
        observer = _observed(stack, config, text, fleet, claim)
        record = record_run(store, folder, config, text, kind=fleet.kind)
        for event in missed_events(folder.path, store):
            observer(event)
        parts = _parts(stack, config, fleet, claim=claim, record=record, observer=observer)
        spec, record = _with_model(parts, record)
        method, setting = _method(parts, spec, record)
        # Not before: a config that no method can be made of is mended, and the run then begins.
        if record != store.run():
            store.update_run(record)
        fleet.started(method, parts.planner)
        coordinator = coordinate(
            parts.tracker, parts.planner, store=store, reader=parts.reader, options=_options(config)
        )
        coordinator.obey(OrderBook(folder.path, arrive=claim.arrive))
        coordinator.privacy = privacy_of(
            config, folder.path, central=setting.combine.central, rollbacks=record.rollbacks, observer=observer
        )
        coordinator.run(method, spec)
        if fleet.dismiss:
            parts.tracker.dismiss_all(f"run {config.run.name} is complete")
        model = _export(config, parts.builder, method, record.class_names) if config.export.global_model else None
        metrics = [closed.metrics for closed in store.closed() if closed.metrics]
        records = device_records(store, rounds=coordinator.rounds, manifest=parts.planner.manifest)
        return RunOutcome(records, metrics, model)


@dataclass(frozen=True)
class _Parts:
    """What a run is put together of before anybody knows which model its devices train."""

    config: RunConfig
    fleet: FleetAccess
    builder: Builder
    engine: Executor
    planner: Planner
    reader: UpdateReader
    tracker: TaskTracker


def _parts(
    stack: ExitStack,
    config: RunConfig,
    fleet: FleetAccess,
    *,
    claim: Claim,
    record: RunRecord,
    observer: events.Observer,
) -> _Parts:
    folder = folder_of(config)
    blobs = stack.enter_context(claim_blobs(folder, config, record, sync=fleet.sync, check=claim.check))
    builder = Builder(folder.artifacts, recompute=config.train.recompute)
    limit_memory(choose_device(config.server.device), config.server.memory_ratio)
    engine = fleet.engine or stack.enter_context(open_engine(config.engine))
    planner = _planner(config, builder, blobs, identity=record.identity)
    planner.prepare = partial(builder.build_all, engine=engine)
    planner.rollbacks, planner.hiding = record.rollbacks, hiding_of(config)
    reader = UpdateReader(planner, norm_limit=config.update.clip_norm)
    tracker = TaskTracker(fleet.talk(blobs), planner, store=claim.store, reader=reader, observer=observer)
    tracker.check_claim = claim.check
    return _Parts(config, fleet, builder, engine, planner, reader, tracker)


def _with_model(parts: _Parts, record: RunRecord) -> tuple[ModelSpec, RunRecord]:
    """The model of a run, with the record that knows it: as it was written down, else as the first devices report."""
    config, tracker, spec = parts.config, parts.tracker, record.spec
    if spec is None:
        reports = tracker.gather(config.fleet.devices, timeout_s=config.fleet.join_timeout_s)
        spec, class_names = infer_spec(config.model, reports)
        record = replace(record, spec=spec, class_names=class_names)
    tracker.run_data = make_run_data(config, spec, record.class_names)
    parts.planner.class_names = record.class_names
    return spec, record


def _method(parts: _Parts, spec: ModelSpec, record: RunRecord) -> tuple[Method, Setting]:
    """The method at its birth, and what it got."""
    config, planner = parts.config, parts.planner
    setting = make_setting(
        config,
        spec,
        planner.manifest,
        public=numbered_as(parts.fleet.public, record.class_names),
        forecasts=parts.tracker.speeds,
        class_names=record.class_names,
    )
    setting = replace(setting, engine=parts.engine, prepare=planner.prepared)
    return registry.find(config.method.name).make(config.method.params, setting), setting


def _observed(stack: ExitStack, config: RunConfig, text: str, fleet: FleetAccess, claim: Claim) -> events.Observer:
    """The fleet's observer, with what the run's folder keeps of all that happens before it."""
    path, about = folder_of(config).path, _about(config, fleet.kind)
    custody = Custody(claim.check, claim.keep)
    log = audited(path, fleet.observer, config=text, about=about, sync=fleet.sync, custody=custody)
    observer = stack.enter_context(noticed(path, stack.enter_context(log)))
    return stack.enter_context(shown_live(path, observer))


def as_ordered(config: RunConfig, text: str, known: RunRecord | None) -> RunConfig:
    """The config of a server that takes a run over: what people ordered of its rounds meanwhile holds on."""
    if known is None or known.config != text or not known.rounds:
        return config
    return replace(config, run=replace(config.run, rounds=known.rounds))


def _stand_by(observer: events.Observer, stood: list[str], holder: str) -> None:
    stood.append(holder)
    text = f"standing by: {holder} is at work on this run; this one takes over when that falls silent"
    log.warning("%s", text)
    observer(events.Warned(text))


def _about(config: RunConfig, kind: Kind) -> dict[str, Any]:
    """What the audit log says of a run that begins or goes on, for those who read nothing else of it."""
    return {
        "run": config.run.name,
        "kind": kind,
        "method": config.method.name,
        "model": config.model.model,
        "rounds": config.run.rounds,
        "devices": config.fleet.devices,
        "sample_ratio": config.fleet.sample_ratio,
        "deadline_s": config.fleet.deadline_s,
        "seed": config.run.seed,
    }


def coordinate(
    tracker: TaskTracker, planner: Planner, *, store: RoundStore, reader: UpdateReader, options: RoundOptions
) -> Coordinator | AsynchronousCoordinator:
    """Rounds in step, or asynchronous ones when a buffer is asked for."""
    kind = Coordinator if options.buffer is None else AsynchronousCoordinator
    return kind(tracker, planner, store=store, reader=reader, options=options)


def _planner(config: RunConfig, builder: Builder, blobs: BlobStore, *, identity: str) -> Planner:
    form = config.update.patch_codec
    return Planner(
        config.run.name,
        builder,
        blobs,
        config.fleet.deadline_s,
        chunk_bytes=config.fleet.chunk_kib * 1024,
        codec=config.update.whole_codec,
        identity=identity,
        patches=None if form is None else Patches(form, config.update.model_keep_ratio),
        slower=config.budget.slower,
    )


def _signer(config: RunConfig) -> codec.Sign | None:
    if config.fleet.trust is None:
        return None
    authority = Authority(Path(config.fleet.trust))
    authority.check_signing()
    return authority.sign


def _edge_rights(config: RunConfig) -> EdgeRights:
    """An edge speaks for the devices that were enrolled for it; without enrolment every edge is believed."""
    if config.fleet.trust is None:
        return ANYBODY
    trust = Path(config.fleet.trust)
    # Edges and devices may be enrolled while a run goes on, so the list is read anew.
    return EdgeRights(
        is_enrolled=lambda edge: edge in read_edges(trust) or (trust / "edges" / edge).is_dir(),
        may_speak=lambda edge, device: device in read_edges(trust).get(edge, []),
    )


def _export(config: RunConfig, builder: Builder, method: Method, class_names: tuple[str, ...]) -> Path:
    (spec, weights), model = method.model_of(""), folder_of(config).model
    artifact = builder.build(Structure(spec))
    model.write_bytes(
        export_model(artifact, weights, class_names=class_names, notes=model_notes(config, folder_of(config).path))
    )
    return model


def _options(config: RunConfig) -> RoundOptions:
    return RoundOptions(
        rounds=config.run.rounds,
        devices=config.fleet.devices,
        seed=config.run.seed,
        per_round=config.fleet.per_round,
        sample_ratio=config.fleet.sample_ratio,
        quorum_ratio=config.fleet.quorum_ratio,
        buffer=config.fleet.buffer,
        deadline_s=config.fleet.deadline_s,
        join_timeout_s=config.fleet.join_timeout_s,
        class_means=config.update.class_means,
        weight_cap=config.update.weight_cap or None,
        # A limit that depends on others' changes would let one device move what all count for.
        norm_factor=None if config.privacy.kind == "central" else config.update.norm_factor or None,
        combine=config.update.combination(),
        keep_states=config.run.keep_states,
        secure=secure_options(config) if config.update.secure else None,
        counts=secure_options(config),
    )
