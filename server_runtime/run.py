"""Puts a run together: folder, store, method and coordinator, from a config or from what an earlier process left."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedwright.protocol import codec, tensors
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.base import Link
from fedwright.protocol.messages import Report, Returns
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import Builder, initial_weights
from fedwright.server_runtime.artifacts.standalone import export_model
from fedwright.server_runtime.blocks.robust import Combine
from fedwright.server_runtime.config import ModelSection, RunConfig
from fedwright.server_runtime.evaluate.device_records import device_records
from fedwright.server_runtime.evaluate.records import DeviceRecord
from fedwright.server_runtime.fleet.revocation import Gate
from fedwright.server_runtime.fleet.trust import Authority, read_edges
from fedwright.server_runtime.methods import registry
from fedwright.server_runtime.methods.base import Forecasts, Method, Setting, personal_layers
from fedwright.server_runtime.public_data import PublicData, load_public
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.asynchronous import BufferedCoordinator
from fedwright.server_runtime.rounds.coordinator import Coordinator, Options
from fedwright.server_runtime.rounds.planner import Planner
from fedwright.server_runtime.rounds.store.base import Kind
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.rounds.task_tracker import Desk, Talks
from fedwright.server_runtime.run_folder import RunFolder, claim_folder, folder_of, record_run
from fedwright.server_runtime.seeds import derive_seed
from fedwright.server_runtime.spec import ModelSpec, Structure
from fedwright.server_runtime.storage_errors import plain_storage_errors
from fedwright.server_runtime.transport.device_channel import Exchange
from fedwright.server_runtime.transport.edge_routes import MaySpeak, anybody

log = logging.getLogger(__name__)

# Ids that an error names.
SHOWN = 20


@dataclass(frozen=True)
class Meeting:
    """How the server meets its devices: over a link, or in this process.

    started: gets the method and the planner before the first round. sync: False outlives a kill but not a power cut.
    public: the server's own examples, where they do not come from a file that the config names. kind: of the run.
    """

    talk: Callable[[BlobStore], Talks]
    observer: events.Observer = events.ignore
    started: Callable[[Method, Planner], None] = lambda method, planner: None
    sync: bool = True
    dismiss: bool = True
    public: PublicData | None = None
    kind: Kind = "served"


@dataclass(frozen=True)
class Outcome:
    """What a finished run leaves."""

    devices: dict[str, DeviceRecord]
    metrics: list[dict[str, float]]
    model: Path | None


def execute(
    config: RunConfig, text: str, *, link: Link, observer: events.Observer = events.ignore, dismiss: bool = True
) -> Outcome:
    """Run a config to its end, or go on where an earlier process stopped; `text` is the config as written."""

    def talk(blobs: BlobStore) -> Talks:
        exchange = Exchange(link, config.fleet.name, blobs=blobs, sign=_signer(config), may_speak=_may_speak(config))
        if config.fleet.trust is not None:
            exchange.gate = Gate(Path(config.fleet.trust))
        return exchange

    return meet(config, text, Meeting(talk, observer, dismiss=dismiss))


def meet(config: RunConfig, text: str, meeting: Meeting) -> Outcome:
    """`execute` over any way to speak with devices."""
    folder = folder_of(config)
    with plain_storage_errors(folder.store), ExitStack() as stack:
        folder.path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(claim_folder(folder))
        store = stack.enter_context(closing(SqliteRoundStore(folder.store, sync=meeting.sync)))
        record = record_run(store, folder, config, text, kind=meeting.kind)
        blobs = BlobStore(folder.blobs, sync=meeting.sync)
        builder = Builder(folder.artifacts)
        desk = Desk(
            meeting.talk(blobs),
            _planner(config, builder, blobs, identity=record.identity),
            store=store,
            update_norm=config.update.clip_norm,
            observer=meeting.observer,
        )
        spec = record.spec
        if spec is None:
            reports = desk.gather(config.fleet.devices, timeout_s=config.fleet.join_timeout_s)
            spec = infer_spec(config.model, reports)
            store.update_run(replace(record, spec=spec))
        method = make_method(config, spec, builder, public=meeting.public, forecasts=desk.speeds)
        meeting.started(method, desk.planner)
        coordinate(desk, _options(config)).run(method, spec)
        if meeting.dismiss:
            desk.dismiss_all(f"run {config.run.name} is complete")
        model = _export(folder, builder, method) if config.export.global_model else None
        metrics = [closed.metrics for closed in store.closed() if closed.metrics]
        records = device_records(store, rounds=config.run.rounds, manifest=desk.planner.manifest)
        return Outcome(records, metrics, model)


def coordinate(desk: Desk, options: Options) -> Coordinator | BufferedCoordinator:
    """Rounds in step, or asynchronous ones when a buffer is asked for."""
    return Coordinator(desk, options) if options.buffer is None else BufferedCoordinator(desk, options)


def infer_spec(section: ModelSection, reports: Mapping[str, Report]) -> ModelSpec:
    """The model's input and classes: as configured, else as most devices report them."""
    shapes = [tuple(report.data.input_shape) for _, report in sorted(reports.items())]
    shape = section.input_shape or max(shapes, key=shapes.count)
    classes = section.classes or max(
        (r.data.classes for r in reports.values() if tuple(r.data.input_shape) == shape), default=0
    )
    if classes < 2:
        raise ConfigError("the devices report fewer than two classes; give them labelled data or set model.classes")
    return zoo.named(section.model, ModelSpec(section.model, shape, classes))


def make_method(
    config: RunConfig,
    spec: ModelSpec,
    builder: Builder | None = None,
    *,
    public: PublicData | None = None,
    forecasts: Forecasts | None = None,
) -> Method:
    """The configured method at its birth; the same config gives the same method on every machine.

    builder: lets the method ask what a structure needs of a device. public: instead of the config's own file.
    forecasts: how long that takes there.
    """
    _check_foreign(config)
    module = zoo.create(spec, seed=derive_seed(config.run.seed, "initial weights"))
    setting = Setting(
        spec=spec,
        optimizer=config.train.optimizer,
        initial=initial_weights(module),
        learning_rate=config.train.learning_rate,
        batch=config.train.batch,
        epochs=config.train.epochs,
        seed=config.run.seed,
        returns=Returns(
            codec=config.update.codec, keep_ratio=config.update.keep_ratio, evaluate=config.update.evaluate
        ),
        combine=Combine(config.update.combine, config.update.trim_ratio),
        manifest=None if builder is None else lambda structure: builder.build(structure).manifest,
        device=_torch_device(config.server.device),
        public=public or load_public(config.public, spec, seed=config.run.seed),
        budget=config.budget.limits(),
        forecasts=forecasts,
    )
    return registry.find(config.method.name).make(config.method.params, setting)


def _check_foreign(config: RunConfig) -> None:
    """Raise ConfigError where labels of another task would be taken for the devices' classes."""
    if config.public.foreign and not getattr(config.method.params, "transfer", False):
        raise ConfigError(
            f"public.foreign lets labels of another task in, but {config.method.name} would take them for the devices'"
            " classes; leave it out, or use fedconv with transfer = true"
        )


def export_device(config: RunConfig, device: str, target: Path) -> None:
    """Write the model that a device should use now as a plain ONNX file; that of no device is the global one."""
    folder = folder_of(config)
    with plain_storage_errors(folder.store), closing(SqliteRoundStore(folder.store)) as store:
        record = store.run()
        closed = store.closed()
        if record is None or record.spec is None or not closed:
            raise ConfigError(f"run {config.run.name} in {folder.path} has no finished round to export yet")
        _check_known(device, device_records(store, rounds=config.run.rounds), folder)
        method = make_method(config, record.spec)
        method.restore(tensors.load(BlobStore(folder.blobs).path(closed[-1].state)))
    spec, weights = method.personal(device)
    kept = ", ".join(personal_layers(method, device))
    if kept:
        log.warning("%s never left %s; the exported model has the server's own in place of them", kept, device)
    target.write_bytes(export_model(Builder(folder.artifacts).build(Structure(spec)), weights))


def _check_known(device: str, known: Mapping[str, DeviceRecord], folder: RunFolder) -> None:
    """Raise ConfigError for a device that has never answered in a run."""
    if device and device not in known:
        names = sorted(known)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ConfigError(
            f"no device {device!r} has answered in the run in {folder.path}; those that have are "
            f"{', '.join(names[:SHOWN])}{more}"
        )


def _planner(config: RunConfig, builder: Builder, blobs: BlobStore, *, identity: str) -> Planner:
    return Planner(
        config.run.name,
        builder,
        blobs,
        config.fleet.deadline_s,
        chunk_bytes=config.fleet.chunk_kib * 1024,
        codec=config.update.model_codec,
        identity=identity,
    )


def _torch_device(wanted: str) -> str:
    """The device that a config asks for; `auto` takes CUDA where there is any."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise ConfigError("server.device is 'cuda' but torch finds no CUDA device; use 'auto' or 'cpu'")
    return "cuda" if present and wanted != "cpu" else "cpu"


def _signer(config: RunConfig) -> codec.Sign | None:
    return None if config.fleet.trust is None else Authority(Path(config.fleet.trust)).sign


def _may_speak(config: RunConfig) -> MaySpeak:
    """An edge speaks for the devices that were enrolled for it; without enrolment every edge is believed."""
    if config.fleet.trust is None:
        return anybody
    trust = Path(config.fleet.trust)
    # Devices may be enrolled while a run goes on, so the list is read anew.
    return lambda edge, device: device in read_edges(trust).get(edge, [])


def _export(folder: RunFolder, builder: Builder, method: Method) -> Path:
    spec, weights = method.personal("")
    folder.model.write_bytes(export_model(builder.build(Structure(spec)), weights))
    return folder.model


def _options(config: RunConfig) -> Options:
    return Options(
        rounds=config.run.rounds,
        devices=config.fleet.devices,
        seed=config.run.seed,
        per_round=config.fleet.per_round,
        sample_ratio=config.fleet.sample_ratio,
        quorum_ratio=config.fleet.quorum_ratio,
        buffer=config.fleet.buffer,
        deadline_s=config.fleet.deadline_s,
        join_timeout_s=config.fleet.join_timeout_s,
        features=config.update.features,
    )
