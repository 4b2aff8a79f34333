"""What a device trains with, made from its settings: its data, its trainer and check, its guard, its noise."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedwright.device_runtime import facts
from fedwright.device_runtime.data import load
from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.describe.noise import SECRET_BYTES, ClassMeanNoise, with_noise
from fedwright.device_runtime.equipment_settings import EquipmentSettings, limits_of
from fedwright.device_runtime.guard import Guard, board_state
from fedwright.device_runtime.profiler.store import find_profiles
from fedwright.device_runtime.run_task import CheckArtifact, MakeTrainer, Tools, unchanged_means
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.personal_layers import PersonalLayers
from fedwright.device_runtime.store.residual import ErrorFeedback
from fedwright.device_runtime.store.secret import kept_secret
from fedwright.device_runtime.train.base import Interrupt, Tensors, Trainer
from fedwright.device_runtime.train.threads import pick_threads
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.errors import ConfigError, PolicyRefused
from fedwright.protocol.messages import DataSummary, Recipe
from fedwright.protocol.predictor import Profile

# Data order on a device must not depend on when it joined: the split into training and held-out part is fixed.
SPLIT_SEED = 0

HowMany = Callable[[Artifact], int]
"""The number of threads to train an artifact with."""


@dataclass(frozen=True)
class Equipment:
    """What a device trains with; told: what it says about its data when that is not the plain truth."""

    data: LocalData
    tools: Tools
    residual: ErrorFeedback
    folder: Path
    told: DataSummary | None = None


def make_equipment(settings: EquipmentSettings, *, wait: Callable[[float], object] = time.sleep) -> Equipment:
    """Read the data and get everything ready; wait: how a guard passes its time."""
    if settings.backend == "classic" and not settings.policy.unfollowed_graphs:
        raise ConfigError(
            "nobody can see whether graphs of the classic backend carry single samples off this device; use the "
            "portable one, or set unfollowed_graphs = true in its policy (see `fedwright device policy`)"
        )
    folder = Path(settings.folder)
    threads = settings.threads or facts.cores()
    limits = limits_of(settings)
    data = load(settings.data, holdout_ratio=settings.holdout_ratio, seed=SPLIT_SEED)
    told = _told(data, settings)
    tools = make_tools(
        settings.backend,
        threads=settings.threads,
        folder=folder,
        provider=settings.provider,
        profiles=find_profiles(Path(settings.state), settings.threads),
    )
    guard = Guard(limits, lambda: board_state(threads), wait=wait) if limits.given() else None
    noise = unchanged_means if told is None or not settings.noise_ratio else _mean_noise(told, settings)
    tools = replace(tools, guard=guard, class_mean_noise=noise, policy=settings.policy)
    if settings.policy.operators:
        tools = replace(tools, check=_only(frozenset(settings.policy.operators), tools.check))
    return Equipment(data, tools, ErrorFeedback(folder), folder, told)


def _told(data: LocalData, settings: EquipmentSettings) -> DataSummary | None:
    """What is said about the data, with the same noise in every life of this agent; None where that is the truth."""
    if settings.policy.tells_epsilon is not None:
        # Few owners ask for it, and every agent would pay for its import.
        from fedwright.device_runtime.describe.local_privacy import told_once

        return told_once(data, settings.policy.tells_epsilon, Path(settings.folder))
    if not settings.noise_ratio:
        return None
    secret = _secret(Path(settings.folder))
    return with_noise(data.summary(), settings.noise_ratio, np.random.default_rng(list(secret)))


def _mean_noise(told: DataSummary, settings: EquipmentSettings) -> ClassMeanNoise:
    """Noise on class means that fits what was told of the classes."""
    secret = _secret(Path(settings.folder))
    return ClassMeanNoise(settings.noise_ratio, secret, told.class_counts or (), tuple(told.class_names or ()))


def _secret(folder: Path) -> bytes:
    """What this device's noise is drawn from; it never leaves."""
    return kept_secret(folder / "noise", SECRET_BYTES)


def make_tools(
    backend: str, *, threads: int, folder: Path, provider: str = "cpu", profiles: Sequence[Profile] = ()
) -> Tools:
    """The trainer, the check and the checkpoint file of a device; 0 threads: as many as pay for each graph."""
    backends = {"portable": _portable, "classic": _classic}
    if backend not in backends:
        raise ConfigError(f"unknown backend {backend!r}; choose one of {', '.join(backends)}")

    def how_many(artifact: Artifact) -> int:
        return threads or pick_threads(artifact.manifest, facts.cores(), profiles)

    make_trainer, check, interrupt = backends[backend](how_many, provider)
    return Tools(make_trainer, check, Checkpoint(folder / "checkpoint"), PersonalLayers(folder), interrupt=interrupt)


def _only(operators: frozenset[str], check: CheckArtifact) -> CheckArtifact:
    """A check that lets through these operators alone."""
    from fedwright.protocol.onnx_outline import scan

    def check_operators(artifact: Artifact, recipe: Recipe) -> None:
        check(artifact, recipe)
        for name, data in artifact.graphs.items():
            others = sorted({operator for _, operator in scan(data, what=name).operators} - operators)
            if others:
                raise PolicyRefused("operators", f"runs no {others[0]}, which {name} uses")

    return check_operators


def _portable(threads: HowMany, provider: str) -> tuple[MakeTrainer, CheckArtifact, Interrupt | None]:
    from fedwright.device_runtime.train.check import check_artifact
    from fedwright.device_runtime.train.portable import PortableTrainer
    from fedwright.device_runtime.train.session import RunInterrupt, pick_provider

    pick_provider(provider)
    interrupt = RunInterrupt()

    def make_trainer(artifact: Artifact, sides: Tensors, frozen: Tensors) -> Trainer:
        return PortableTrainer(
            artifact,
            threads=threads(artifact),
            provider=provider,
            sides=sides,
            frozen=frozen,
            interrupt=interrupt,
        )

    def check(artifact: Artifact, recipe: Recipe) -> None:
        check_artifact(artifact, free_bytes=facts.free_bytes(), batch=recipe.at_once)

    return make_trainer, check, interrupt


def _classic(threads: HowMany, provider: str) -> tuple[MakeTrainer, CheckArtifact, Interrupt | None]:
    from fedwright.device_runtime.train.classic import ClassicTrainer
    from fedwright.device_runtime.train.classic_check import check_classic

    if provider != "cpu":
        raise ConfigError(f"the classic backend runs on the cpu, not on {provider!r}; use --backend portable")

    def make_trainer(artifact: Artifact, sides: Tensors, frozen: Tensors) -> Trainer:
        return ClassicTrainer(artifact, threads=threads(artifact), sides=sides, frozen=frozen)

    def check(artifact: Artifact, recipe: Recipe) -> None:
        check_classic(artifact, free_bytes=facts.free_bytes(), batch=recipe.batch)

    return make_trainer, check, None
