"""A run's folder: whose it is, and which run it holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedwright.protocol import codec
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import lock_folder
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.rounds.store.base import Kind, Reply, RoundStore, RunRecord

# What a simulation writes into its folder after its first round.
SIMULATED_FILE = "seconds.txt"
SIMULATED_SUFFIX = ".simulated"
NAMES: dict[Kind, str] = {"served": "a run over a broker", "simulated": "a simulation"}


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps what it must not forget."""

    path: Path

    @property
    def store(self) -> Path:
        """Plans, replies and closed rounds."""
        return self.path / "rounds.sqlite"

    @property
    def address(self) -> Path:
        """Says which database has them, when it is not that file."""
        return self.path / "rounds.url"

    @property
    def holds_run(self) -> bool:
        """Whether a run was ever begun here."""
        return self.store.exists() or self.address.exists()

    @property
    def blobs(self) -> Path:
        """Weights, updates, method states."""
        return self.path / "blobs"

    @property
    def artifacts(self) -> Path:
        """Training graphs by structure."""
        return self.path / "artifacts"

    @property
    def model(self) -> Path:
        """The exported global model."""
        return self.path / "model.onnx"


def folder_of(config: RunConfig) -> RunFolder:
    """The folder a config names."""
    return RunFolder(Path(config.run.folder) / config.run.name)


def check_place(config: RunConfig) -> None:
    """Raise ConfigError where a config's folder cannot be made, since a file lies there."""
    for place in (Path(config.run.folder), folder_of(config).path):
        if place.exists() and not place.is_dir():
            raise ConfigError(f"the run would be kept in {place}, which is a file; change run.folder or run.name")


def simulation_of(config: RunConfig) -> RunConfig:
    """The config with a name, and so a folder, that a run over a broker does not have."""
    return replace(config, run=replace(config.run, name=config.run.name + SIMULATED_SUFFIX))


def kind_of(record: RunRecord, folder: RunFolder) -> Kind:
    """What a folder holds; one of a release that did not record it shows it by its files."""
    return record.kind or ("simulated" if (folder.path / SIMULATED_FILE).exists() else "served")


def check_kind(record: RunRecord, folder: RunFolder, kind: Kind) -> None:
    """Raise ConfigError when a folder holds the other kind of run."""
    held = kind_of(record, folder)
    if record.spec is not None and held != kind:
        raise ConfigError(
            f"{folder.path} holds {NAMES[held]} and cannot hold {NAMES[kind]} as well; give this one another run.name "
            f"or run.folder, or set that one aside with --anew"
        )


@contextmanager
def claim_folder(folder: RunFolder) -> Iterator[None]:
    """Keep other servers away from a folder; ConfigError when one is at work there."""
    lock = lock_folder(folder.path)
    if lock is None:
        raise ConfigError(
            f"another server is at work on the run in {folder.path}; stop it, or give this run another name"
        )
    with lock:
        yield


def record_run(store: RoundStore, folder: RunFolder, config: RunConfig, text: str, *, kind: Kind) -> RunRecord:
    """The run in a store as this config has it now; a new one gets its identity."""
    known = store.run()
    if known is None:
        record = RunRecord(config.run.name, text, None, codec.new_id(), kind, config.run.rounds)
        store.save_run(record)
        return record
    check_kind(known, folder, kind)
    record = replace(known, config=text, kind=kind, rounds=config.run.rounds)
    if record != known:
        store.update_run(record)
    _give_up_measurements(store, config.run.rounds)
    return record


def _give_up_measurements(store: RoundStore, rounds: int) -> None:
    """Nobody waits for a measurement that a run was stopped in before it was given more rounds."""
    for planned, reply in store.pending():
        if reply is None and planned.task.evaluation and planned.task.round != rounds:
            store.save_reply(Reply(planned.task.task, "late", detail="the run was given more rounds"))
