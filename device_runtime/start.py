"""Puts an agent together from its settings and runs it until it is dismissed or asked to stop."""

import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedwright.device_runtime import facts
from fedwright.device_runtime.agent import Agent
from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.data import load
from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.describe.hidden_counts import HiddenCounts, counts_of, without_counts
from fedwright.device_runtime.describe.noise import SECRET_BYTES, ClassMeanNoise, with_noise
from fedwright.device_runtime.guard import Guard, Limits, board_state
from fedwright.device_runtime.profiler.store import PROFILE_NAME, find_profile
from fedwright.device_runtime.resources import Resources
from fedwright.device_runtime.run_task import CheckArtifact, MakeTrainer, Tools, unchanged_means
from fedwright.device_runtime.server_choice import DeviceIdentity
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.journal import Journal
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.device_runtime.store.secret import kept_secret
from fedwright.device_runtime.train.base import Tensors, Trainer
from fedwright.device_runtime.train.threads import pick_threads
from fedwright.protocol import codec, topics
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.crypto.secure_sum import LEAST_DEVICES
from fedwright.protocol.crypto.x25519 import KEY_BYTES
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link import connect
from fedwright.protocol.messages import DataSummary, Gone, Recipe
from fedwright.protocol.predictor import Profile

log = logging.getLogger(__name__)

# Artifacts and a frozen base are worth keeping between rounds; weights are removed as soon as they are used.
BLOB_LIMIT_BYTES = 2 * 1024**3
# Data order on a device must not depend on when it joined: the split into training and held-out part is fixed.
SPLIT_SEED = 0
MB = 1e6

HowMany = Callable[[Artifact], int]
"""The number of threads to train an artifact with."""


def run_agent(config: AgentConfig) -> None:
    """Run one device in the foreground; SIGTERM and SIGINT end it cleanly."""
    topics.check_name(config.device, what="device id")
    for fleet in (config.fleet, *config.further):
        topics.check_name(fleet, what="fleet")
    # A wrong bundle is said before the data is read, which may take long.
    config.identity()
    threads = config.threads or facts.cores()
    profiles = _profiles(config)
    limits = Limits(config.most_temperature_c, config.least_battery_ratio, config.most_load_ratio)
    # Emulated devices and services may have been started further back already.
    os.nice(max(0, config.nice - os.nice(0)))
    data = load(config.data, holdout_ratio=config.holdout_ratio, seed=SPLIT_SEED)
    folder = config.state / config.fleet / config.device
    journal = Journal(folder)
    told = _told(data, config, folder) if config.noise_ratio else None
    resources = Resources(
        board=facts.board(threads=threads, profile=config.profile),
        data=data,
        blobs=BlobStore(folder / "blobs", limit_bytes=BLOB_LIMIT_BYTES),
        journal=journal,
        residual=ErrorFeedback(folder),
        tools=replace(
            make_tools(
                config.backend, threads=config.threads, folder=folder, provider=config.provider, profiles=profiles
            ),
            guard=Guard(limits, lambda: board_state(threads)) if limits.given() else None,
            class_mean_noise=unchanged_means if told is None else _mean_noise(told, config, folder),
        ),
        trains=config.trains,
        told=told,
        profile=profiles[0].to_json() if profiles else None,
        round_s=config.round_s,
        round_bytes=None if config.round_mb is None else int(config.round_mb * MB),
        model=config.model,
    )
    if config.hide_counts:
        log.info("counts of the data are told only in sums over %d devices or more that hide theirs", LEAST_DEVICES)
        resources = _hiding(resources, config.device, folder)
    try:
        _run(config, resources)
    finally:
        journal.close()


def _profiles(config: AgentConfig) -> list[Profile]:
    """What this device measured of itself: for its number of threads, or for one and for all cores."""
    wanted = (config.threads,) if config.threads else (1, facts.cores())
    found = [find_profile(config.state / PROFILE_NAME, threads=threads) for threads in dict.fromkeys(wanted)]
    return [profile for profile in found if profile is not None]


def _told(data: LocalData, config: AgentConfig, folder: Path) -> DataSummary:
    """What is said about the data, with the same noise in every life of this agent."""
    return with_noise(data.summary(), config.noise_ratio, np.random.default_rng(list(_secret(folder))))


def _mean_noise(told: DataSummary, config: AgentConfig, folder: Path) -> ClassMeanNoise:
    """Noise on class means that fits what was told of the classes."""
    return ClassMeanNoise(config.noise_ratio, _secret(folder), told.class_counts or (), tuple(told.class_names or ()))


def _secret(folder: Path) -> bytes:
    """What this device's noise is drawn from; it never leaves."""
    return kept_secret(folder / "noise", SECRET_BYTES)


def _hiding(resources: Resources, device: str, folder: Path) -> Resources:
    """Nothing of the data's content is told; counts go into sums that hide them, with one key in all lives."""
    told = resources.told or resources.data.summary()
    secret = kept_secret(folder / "sum-key", KEY_BYTES)
    hidden = HiddenCounts(device, counts_of(told), secret=secret, folder=folder, class_names=told.class_names)
    return replace(resources, told=without_counts(told), hidden=hidden)


def make_tools(
    backend: str, *, threads: int, folder: Path, provider: str = "cpu", profiles: Sequence[Profile] = ()
) -> Tools:
    """The trainer, the check and the checkpoint file of a device; 0 threads: as many as pay for each graph."""
    backends = {"portable": _portable, "classic": _classic}
    if backend not in backends:
        raise ConfigError(f"unknown backend {backend!r}; choose one of {', '.join(backends)}")

    def how_many(artifact: Artifact) -> int:
        return threads or pick_threads(artifact.manifest, facts.cores(), profiles)

    make_trainer, check = backends[backend](how_many, provider)
    return Tools(make_trainer, check, Checkpoint(folder / "checkpoint"), PersonalLayers(folder))


def _portable(threads: HowMany, provider: str) -> tuple[MakeTrainer, CheckArtifact]:
    from fedwright.device_runtime.train.check import check_artifact
    from fedwright.device_runtime.train.portable import PortableTrainer
    from fedwright.device_runtime.train.session import pick_provider

    pick_provider(provider)

    def make_trainer(artifact: Artifact, sides: Tensors, frozen: Tensors) -> Trainer:
        return PortableTrainer(artifact, threads=threads(artifact), provider=provider, sides=sides, frozen=frozen)

    def check(artifact: Artifact, recipe: Recipe) -> None:
        check_artifact(artifact, free_bytes=facts.free_bytes(), batch=recipe.batch)

    return make_trainer, check


def _classic(threads: HowMany, provider: str) -> tuple[MakeTrainer, CheckArtifact]:
    from fedwright.device_runtime.train.classic import ClassicTrainer
    from fedwright.device_runtime.train.classic_check import check_classic

    if provider != "cpu":
        raise ConfigError(f"the classic backend runs on the cpu, not on {provider!r}; use --backend portable")

    def make_trainer(artifact: Artifact, sides: Tensors, frozen: Tensors) -> Trainer:
        return ClassicTrainer(artifact, threads=threads(artifact), sides=sides, frozen=frozen)

    def check(artifact: Artifact, recipe: Recipe) -> None:
        check_classic(artifact, free_bytes=facts.free_bytes(), batch=recipe.batch)

    return make_trainer, check


def _run(config: AgentConfig, resources: Resources) -> None:
    bundle = config.identity()
    identity = DeviceIdentity(
        config.device,
        config.fleet,
        codec.new_id(),
        None if bundle is None else bundle.verify,
        config.further,
        config.patience_s,
    )
    up = topics.up(identity.fleet, identity.device)
    gone = codec.encode(Gone(), sender=identity.device, boot=identity.boot)
    if bundle is None:
        log.warning("DEVELOPMENT MODE: no certificate and no signed tasks; enroll this device before it leaves the lab")
    link = connect(config.broker, client_id=identity.device, will=(up, gone), tls=config.tls(), login=config.login)
    agent = Agent(link, identity, resources, leave_when_over=config.once)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    log.info("device %s serves fleet %s at %s", identity.device, identity.fleet, config.broker)
    try:
        agent.run()
    finally:
        agent.leave()
        link.close()
