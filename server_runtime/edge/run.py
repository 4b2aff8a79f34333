"""Puts an edge together from its config and runs it until it is dismissed or asked to stop."""

import logging
import os
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from fedwright.protocol import codec, topics
from fedwright.protocol.address import EDGE_USER, Login, find_login
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link import connect
from fedwright.protocol.link.base import Link
from fedwright.protocol.link.security import Bundle, TlsFiles
from fedwright.protocol.messages import Board, Gone
from fedwright.protocol.rendezvous import shard_names
from fedwright.protocol.support.files import lock_folder
from fedwright.protocol.support.metrics import served_metrics
from fedwright.server_runtime.blocks.fedconv.cluster_exchange import ExchangeOptions
from fedwright.server_runtime.edge.base import BaseEdge, EdgeOptions
from fedwright.server_runtime.edge.config import DevicesSection, EdgeConfig, HostSection, check_edge
from fedwright.server_runtime.edge.edge import Edge
from fedwright.server_runtime.edge.host_channel import HostChannel, Presence
from fedwright.server_runtime.edge.metrics import EdgeFigures
from fedwright.server_runtime.edge.pooled_update import Grouping, Plain
from fedwright.server_runtime.edge.shard import Shard
from fedwright.server_runtime.edge.shard_store import ShardStore
from fedwright.server_runtime.edge.store import EdgeStore
from fedwright.server_runtime.edge.task_rows import TaskRows
from fedwright.server_runtime.rounds.store.storage_errors import plain_storage_errors
from fedwright.server_runtime.transport.device_channel import DeviceChannel

log = logging.getLogger(__name__)

# Artifacts and frozen bases stay from round to round; above this the least used ones go.
BLOB_LIMIT_BYTES = 16 * 1024**3


def run_edge(
    config: EdgeConfig, *, shard: int | None = None, started: Callable[[BaseEdge], None] = lambda edge: None
) -> None:
    """Run an edge in the foreground; `started` gets it before it serves.

    shard: which of those that share the config; None takes one that nobody on this machine is.
    """
    config = named(config, shard)
    bundle = _bundle(config)
    tls = TlsFiles() if bundle is None else bundle.tls()
    name, fleet, boot = config.edge.name, config.host.fleet, codec.new_id()
    will = (topics.up(fleet, name), codec.encode(Gone(), sender=name, boot=boot))
    verify, sign = (None, None) if bundle is None else (bundle.verify, bundle.sign)
    presence = Presence(fleet, name, boot, edge_board(), verify, sign)
    with ExitStack() as stack:
        host, devices = config.host, config.devices
        up = connect(host.broker, client_id=f"{name}-up", will=will, tls=tls, login=_login(host, bundle))
        stack.callback(up.close)
        if devices.broker is None or devices.broker == host.broker:
            # A broker lets one certificate in once.
            down = up.branch(topics.of_fleet(name))
        else:
            down = connect(devices.broker, client_id=f"{name}-down", tls=tls, login=_login(devices, bundle))
            stack.callback(down.close)
        serve(config, presence, up=up, down=down, started=started)


def serve(
    config: EdgeConfig,
    presence: Presence,
    *,
    up: Link,
    down: Link,
    started: Callable[[BaseEdge], None] = lambda edge: None,
) -> None:
    """Run an edge over links that stand."""
    folder = Path(config.edge.folder) / config.edge.name
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(folder)
    if lock is None:
        raise ConfigError(f"another edge is at work in {folder}; stop it, or give this one another name")
    file = folder / "edge.sqlite"
    with (
        plain_storage_errors(file, otherwise=f"remove {folder}: devices still have what the host has not"),
        ExitStack() as stack,
    ):
        stack.enter_context(lock)
        blobs = BlobStore(folder / "blobs", limit_bytes=BLOB_LIMIT_BYTES)
        upward = stack.enter_context(closing(HostChannel(up, presence, blobs=blobs, wake=down.wake)))
        downward = DeviceChannel(down, presence.name, blobs=blobs)
        options = EdgeOptions(config.edge.once, config.host.timeout_s, config.devices.least)
        edge: Edge | Shard
        if config.stands:
            kept = stack.enter_context(closing(ShardStore(folder / "shard.sqlite")))
            edge = Shard(upward, downward, store=kept, blobs=blobs, options=options)
        else:
            store = stack.enter_context(closing(EdgeStore(file)))
            rows = TaskRows(presence.name, store, blobs, grouping=grouping_of(config, store), clock=time.monotonic)
            edge = Edge(upward, downward, rows=rows, blobs=blobs, options=options)
        figures = EdgeFigures(edge.snapshot, folder, up, down)
        stack.enter_context(served_metrics(config.metrics.listen, figures.endpoint()))
        started(edge)
        log.info("edge %s serves fleet %s", presence.name, presence.fleet)
        edge.run()


def named(config: EdgeConfig, shard: int | None) -> EdgeConfig:
    """The config of one edge among those that share it; shard: which, None for one that is free on this machine."""
    edge, shards = config.edge, config.edge.shards
    if shards is None:
        if shard is not None:
            raise ConfigError(
                "a number of an edge was given, but the config has no edge.shards; set how many there are"
            )
        return config
    if shard is not None and not 0 <= shard < shards:
        raise ConfigError(f"edge number {shard} was given, but edge.shards is {shards}; give one of 0 to {shards - 1}")
    names = shard_names(edge.name, shards)
    chosen = names[shard] if shard is not None else next(filter(partial(_is_free, Path(edge.folder)), names), None)
    if chosen is None:
        raise ConfigError(f"all {shards} edges of {edge.name} are at work on this machine; raise edge.shards")
    bundle = None if edge.bundle is None else str(Path(edge.bundle) / chosen)
    return replace(config, edge=replace(edge, name=chosen, shards=None, stands=True, bundle=bundle))


def _is_free(folder: Path, name: str) -> bool:
    """Whether no edge of that name is at work on this machine."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    lock = lock_folder(folder / name)
    if lock is not None:
        lock.close()
    return lock is not None


def grouping_of(config: EdgeConfig, store: EdgeStore) -> Grouping:
    """How this edge puts updates together."""
    most, exact, form = config.cluster.most, config.cluster.exact, config.exchange.form
    if most == 1 and exact is None and form == "off":
        return Plain()
    # An edge that only averages has no use for scikit-learn.
    from fedwright.server_runtime.edge.clusters import Clustered, ExchangeNeeds

    wanted = config.exchange
    options = None
    if wanted.form != "off":
        options = ExchangeOptions(wanted.form, wanted.share, wanted.quantile, wanted.steps, wanted.rate)
    return Clustered(ExchangeNeeds(most, exact, options), store)


def edge_board() -> Board:
    """This machine, for the report."""
    cores = psutil.cpu_count() or 1
    return Board(platform.node(), platform.machine(), cores, psutil.virtual_memory().total, "edge", cores)


def _login(section: HostSection | DevicesSection, bundle: Bundle | None) -> Login | None:
    """What the file or the environment says; a password in the address counts by itself."""
    file = None if section.password_file is None else Path(section.password_file)
    return find_login(None, file, user=EDGE_USER, environment=os.environ if bundle is None else {})


def _bundle(config: EdgeConfig) -> Bundle | None:
    bundle = check_edge(config)
    if bundle is None:
        log.warning("DEVELOPMENT MODE: no certificate and no signed orders; enroll this edge before it leaves the lab")
    return bundle
