"""What a run's folder says about it, without touching it: to look at, to resume, to export from."""

from dataclasses import dataclass, replace
from pathlib import Path

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import RunConfig, RunSection, config_from_text
from fedwright.server_runtime.evaluate.records import DeviceRecord, device_records
from fedwright.server_runtime.rounds.store.sqlite import SqliteRoundStore
from fedwright.server_runtime.run import RunFolder


@dataclass(frozen=True)
class PastRun:
    """A recorded run: its config as it was written, and what has been done so far."""

    folder: RunFolder
    text: str
    config: RunConfig
    rounds_done: int
    metrics: list[dict[str, float]]
    devices: dict[str, DeviceRecord]

    @property
    def complete(self) -> bool:
        """Whether all rounds are done."""
        return self.rounds_done >= self.config.run.rounds


def open_run(path: Path) -> PastRun:
    """The run in this folder, wherever the folder has been moved to."""
    folder = RunFolder(path)
    if not folder.store.exists():
        raise ConfigError(f"{path} holds no run; give the folder of one, such as runs/NAME")
    store = SqliteRoundStore(folder.store)
    try:
        record = store.run()
        if record is None:
            raise ConfigError(f"the run in {path} has not begun its first round; use `fedwright server run CONFIG`")
        config = config_from_text(record.config, where=f"the config of {path}")
        if path.absolute().name != record.run:
            raise ConfigError(f"the folder {path} was renamed; give it back its name {record.run!r}")
        closed = [stage for stage in store.closed() if stage.metrics]
        return PastRun(
            folder=folder,
            text=record.config,
            config=replace(config, run=replace(config.run, folder=str(path.absolute().parent))),
            rounds_done=closed[-1].position.round if closed else 0,
            metrics=[stage.metrics for stage in closed],
            devices=device_records(store, rounds=config.run.rounds),
        )
    finally:
        store.close()


def latest_run(parent: Path | None = None) -> Path:
    """The folder of the run that was last written to."""
    parent = parent or Path(RunSection().folder)
    stores = list(parent.glob("*/rounds.sqlite*"))
    if not stores:
        raise ConfigError(f"there is no run in the folder {parent}; name the folder of one")
    return max(stores, key=lambda store: store.stat().st_mtime_ns).parent


def check_unclaimed(config: RunConfig, text: str) -> None:
    """Raise ConfigError when the folder that a config names belongs to a run with another config."""
    folder = RunFolder(Path(config.run.folder) / config.run.name)
    if not folder.store.exists():
        return
    store = SqliteRoundStore(folder.store)
    try:
        record = store.run()
    finally:
        store.close()
    if record is not None and record.config != text:
        raise ConfigError(
            f"{folder.path} belongs to a run that was started with another config; resume that one with "
            f"`fedwright server resume {folder.path}` or change run.name"
        )
