"""Puts an agent together from its settings and runs it until it is dismissed or asked to stop."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from fedwright.device_runtime import facts
from fedwright.device_runtime.agent import Agent
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.equipment_settings import EquipmentSettings, limits_of
from fedwright.device_runtime.https_fetch import HttpsFetcher
from fedwright.device_runtime.owner_rules import OwnerRules
from fedwright.device_runtime.policy import Policy, read_policy
from fedwright.device_runtime.profiler.store import find_profiles
from fedwright.device_runtime.resources import Resources
from fedwright.device_runtime.secure.credentials import Enrolled
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.device_runtime.self_measure import SelfMeasurement, measuring_command
from fedwright.device_runtime.server_choice import DeviceIdentity
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.journal import Journal
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.device_runtime.training_process.parent import TrainingProcess
from fedwright.protocol import codec, topics
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link import Link, Will, connect
from fedwright.protocol.messages import Gone
from fedwright.protocol.support.memory import give_back_large_blocks

log = logging.getLogger(__name__)

# Artifacts and a frozen base are worth keeping between rounds; weights are removed as soon as they are used.
BLOB_LIMIT_BYTES = 2 * 1024**3
MB = 1e6


def run_agent(config: AgentConfig) -> None:
    """Run one device in the foreground; SIGTERM and SIGINT end it cleanly."""
    _check(config)
    give_back_large_blocks()
    # Emulated devices and services may have been started further back already.
    os.nice(max(0, config.nice - os.nice(0)))
    with open_agent(config) as agent:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        agent.run()


@contextmanager
def open_agent(config: AgentConfig) -> Iterator[Agent]:
    """An agent that is connected and ready to `run`; it takes leave of the server when the block ends."""
    _check(config)
    folder = config.state / config.fleet / config.device
    settings = _settings(config, folder)
    limits_of(settings)
    with closing(Journal(folder)) as journal, closing(TrainingProcess(settings)) as runner:
        resources = _resources(config, folder, journal, runner, settings.policy)
        owner = OwnerRules(settings.policy, folder)
        resources = replace(resources, owner=owner, fetcher=_fetcher(config) if settings.policy.fetch_https else None)
        identity, link = _connect(config)
        with closing(link):
            agent = Agent(link, identity, resources, leave_when_over=config.once)
            log.info("device %s serves fleet %s at %s", identity.device, identity.fleet, config.broker)
            with _scraped(config, resources, link):
                try:
                    yield agent
                finally:
                    agent.leave()


def _fetcher(config: AgentConfig) -> HttpsFetcher:
    """What fetches blobs beside the broker: with TLS where the broker is spoken to with TLS."""
    return HttpsFetcher(plain=not config.broker.startswith("mqtts:"), ca=config.tls().ca)


def _scraped(config: AgentConfig, resources: Resources, link: Link) -> AbstractContextManager[object]:
    """Where Prometheus may ask, if anywhere; without that nothing is imported for it."""
    if not config.metrics:
        return nullcontext()
    from fedwright.device_runtime.metrics import DeviceFigures
    from fedwright.protocol.support.metrics import served_metrics

    bundle = config.identity()
    expires_s = None if bundle is None else bundle.info.expires_s or None
    figures = DeviceFigures(resources, link, config.state, expires_s=expires_s)
    return served_metrics(config.metrics, figures.endpoint())


def _check(config: AgentConfig) -> None:
    """Say what is wrong before the data is read, which may take long."""
    topics.check_name(config.device, what="device id")
    for fleet in (config.fleet, *config.further):
        topics.check_name(fleet, what="fleet")
    config.identity()
    if config.metrics:
        from fedwright.protocol.support.metrics import check_installed, parse_listen

        parse_listen(config.metrics)
        check_installed()


def _settings(config: AgentConfig, folder: Path) -> EquipmentSettings:
    return EquipmentSettings(
        data=config.data,
        folder=str(folder),
        state=str(config.state),
        holdout_ratio=config.holdout_ratio,
        backend=config.backend,
        provider=config.provider,
        threads=config.threads,
        noise_ratio=config.noise_ratio,
        most_temperature_c=config.most_temperature_c,
        least_battery_ratio=config.least_battery_ratio,
        most_load_ratio=config.most_load_ratio,
        policy=_policy(config),
    )


def _policy(config: AgentConfig) -> Policy:
    found = read_policy(config.policy)
    if found.path is not None:
        log.info("policy %s is in force: %s", found.path, "; ".join(found.policy.lines()))
    return found.policy


def _resources(
    config: AgentConfig, folder: Path, journal: Journal, runner: TrainingProcess, policy: Policy
) -> Resources:
    profiles, bundle = find_profiles(config.state, config.threads), config.identity()
    resources = Resources(
        board=facts.board(threads=config.threads or facts.cores(), profile=config.profile),
        told=runner.ready.told or runner.ready.summary,
        blobs=BlobStore(folder / "blobs", limit_bytes=BLOB_LIMIT_BYTES),
        journal=journal,
        residual=ErrorFeedback(folder),
        personal=PersonalLayers(folder),
        checkpoint=Checkpoint(folder / "checkpoint"),
        runner=runner,
        trains=config.trains and runner.ready.summary.samples > 0,
        profile=profiles[0].to_json() if profiles else None,
        round_s=config.round_s,
        round_bytes=None if config.round_mb is None else int(config.round_mb * MB),
        model=config.model,
        takes_parts=config.backend == "portable",
        unasked=config.tell,
        sums=SecureSums(config.device, folder, None if bundle is None else Enrolled(bundle)),
        measurement=_measurement(config, folder),
    )
    if not config.hide_counts:
        return resources
    from fedwright.protocol.secure.graph import LEAST_DEVICES

    log.info("counts of the data are told only in sums over %d devices or more that hide theirs", LEAST_DEVICES)
    return _hiding(resources, config, folder, policy)


def _measurement(config: AgentConfig, folder: Path) -> SelfMeasurement:
    """How this device measures itself when it is asked to."""

    def found() -> bytes | None:
        profiles = find_profiles(config.state, config.threads)
        return profiles[0].to_json() if profiles else None

    command = measuring_command(config.state, threads=config.threads, provider=config.provider)
    return SelfMeasurement(command, found, log_file=folder / "profile.log")


def _hiding(resources: Resources, config: AgentConfig, folder: Path, policy: Policy) -> Resources:
    """Nothing of the data's content is told; counts go into sums that hide them."""
    from fedwright.device_runtime.describe.hidden_counts import HiddenCounts, counts_of, without_counts

    told, bundle = resources.told, config.identity()
    counts = counts_of(told, sums=policy.sums_of_counts, least=policy.least_in_sum)
    credentials = None if bundle is None else Enrolled(bundle)
    hidden = HiddenCounts(config.device, counts, folder=folder, credentials=credentials)
    return replace(resources, told=without_counts(told), hidden=hidden)


def _connect(config: AgentConfig) -> tuple[DeviceIdentity, Link]:
    bundle = config.identity()
    identity = DeviceIdentity(
        config.device,
        config.fleet,
        codec.new_id(),
        None if bundle is None else bundle.verify,
        config.further,
        config.patience_s,
        None if bundle is None else bundle.sign,
    )
    up = topics.up(identity.fleet, identity.device)
    gone = codec.encode(Gone(), sender=identity.device, boot=identity.boot)
    if bundle is None:
        log.warning("DEVELOPMENT MODE: no certificate and no signed tasks; enroll this device before it leaves the lab")
    elif ending := bundle.ending(time.time()):
        log.warning("%s", ending)
    link = connect(
        config.broker,
        client_id=identity.device,
        will=Will(up, gone, config.keep_alive_s),
        tls=config.tls(),
        login=config.login,
    )
    return identity, link
