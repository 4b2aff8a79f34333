"""What a run's folder says about it, without touching it: to look at, resume, extend or export from."""

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import (
    ExportSection,
    FleetSection,
    RunConfig,
    RunSection,
    config_from_text,
)
from fedwright.server_runtime.config_sections.metrics import MetricsSection
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.config_sections.store import StoreSection
from fedwright.server_runtime.config_sections.track import TrackSection
from fedwright.server_runtime.rounds.device_records import device_records
from fedwright.server_runtime.rounds.privacy.round_privacy import Spending, read_spending
from fedwright.server_runtime.rounds.store.base import Kind, RoundStore, RunRecord, evaluation_after
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.server_runtime.rounds.store.storage_errors import plain_storage_errors
from fedwright.server_runtime.run_folder.blobs import open_blobs
from fedwright.server_runtime.run_folder.folder import RunFolder, check_kind, check_place, folder_of, kind_of
from fedwright.server_runtime.run_folder.rollback import rounds_kept
from fedwright.server_runtime.run_folder.rounds import open_rounds

# Settings of the fleet that must stay what they were; addresses, times and least numbers may change.
LASTING = ("name", "sample_ratio", "per_round", "buffer")


@dataclass(frozen=True)
class PastRun:
    """A recorded run: its config as it was written, and what has been done so far.

    begun: whether devices have come. measured: whether the model was measured after the last round.
    kept: rounds that it can be taken back to. privacy: what it has told of its devices or their examples.
    """

    folder: RunFolder
    text: str
    config: RunConfig
    kind: Kind
    begun: bool
    rounds_done: int
    measured: bool
    metrics: list[dict[str, float]]
    devices: dict[str, DeviceRecord]
    class_names: tuple[str, ...] = ()
    kept: tuple[int, ...] = ()
    privacy: Spending | None = None

    @property
    def complete(self) -> bool:
        """Whether all rounds are done that may be, and the measurement after them."""
        return (self.rounds_done >= self.config.run.rounds or self.spent) and self.measured

    @property
    def spent(self) -> bool:
        """Whether its budget of privacy ended it."""
        return self.privacy is not None and self.measured and self.rounds_done < self.config.run.rounds


def open_run(path: Path, url: str | None = None) -> PastRun:
    """The run in this folder, wherever the folder has been moved to; url: of its database, with the password."""
    folder = RunFolder(path)
    if not folder.holds_run:
        raise ConfigError(f"{path} holds no run; give the folder of one, such as runs/NAME")
    with plain_storage_errors(folder.store), closing(open_rounds(folder, url)) as store:
        record = store.run()
        if record is None:
            raise ConfigError(f"the run in {path} has no config yet; start it with `fedwright server run CONFIG`")
        config = _config_of(record, path)
        closed = [stage for stage in store.closed() if stage.metrics]
        return PastRun(
            folder=folder,
            text=record.config,
            config=config,
            kind=kind_of(record, folder),
            begun=record.spec is not None,
            rounds_done=closed[-1].position.round if closed else 0,
            measured=_is_measured(store, config.run.rounds),
            metrics=[stage.metrics for stage in closed],
            devices=device_records(store, rounds=config.run.rounds),
            class_names=record.class_names,
            kept=tuple(rounds_kept(store, open_blobs(folder, config, record))),
            privacy=read_spending(config, folder.path),
        )


def _config_of(record: RunRecord, path: Path) -> RunConfig:
    """The config of a run, with the folder where it lies now and the rounds that it was given."""
    config = config_from_text(record.config, where=f"the config of {path}")
    if path.name in ("", ".."):
        path = path.resolve()
    # Ids of tasks are made of the name where there is no identity.
    if path.name != record.run and not record.identity:
        raise ConfigError(f"the folder {path} was renamed; give it back its name {record.run!r}")
    section = replace(config.run, name=path.name, folder=str(path.parent))
    return replace(config, run=replace(section, rounds=record.rounds or section.rounds))


def _is_measured(store: RoundStore, rounds: int) -> bool:
    plan = store.plan(evaluation_after(rounds))
    replies = store.replies(evaluation_after(rounds))
    return plan is not None and all(planned.task.task in replies for planned in plan)


def latest_run(parent: Path | None = None) -> Path:
    """The folder of the run that was last written to."""
    parent = parent or Path(RunSection().folder)
    stores = [*parent.glob("*/rounds.sqlite*"), *parent.glob("*/rounds.url")]
    if not stores:
        raise ConfigError(f"there is no run in the folder {parent}; name the folder of one")
    return max(stores, key=lambda store: store.stat().st_mtime_ns).parent


def find_run(config: RunConfig) -> PastRun | None:
    """The run in the folder that a config names; None when there is none that has begun."""
    folder = folder_of(config)
    if not folder.holds_run:
        return None
    with plain_storage_errors(folder.store), closing(open_rounds(folder, config.store.database)) as store:
        record = store.run()
    return None if record is None or record.spec is None else open_run(folder.path, config.store.database)


def continued(config: RunConfig, *, kind: Kind, rounds: int | None = None) -> RunConfig:
    """The config with the rounds that its run is to have in all: `rounds`, else as the config or an earlier call says.

    Raises ConfigError when the folder that it names belongs to a run with another config, or of another kind.
    """
    check_place(config)
    folder = folder_of(config)
    wanted = config if rounds is None else with_rounds(config, rounds)
    if not folder.holds_run:
        return wanted
    with plain_storage_errors(folder.store), closing(open_rounds(folder, config.store.database)) as store:
        record = store.run()
        closed = store.closed()
    if record is None or record.spec is None:
        return wanted
    check_kind(record, folder, kind)
    before = _written(record, folder)
    if _essence(before, kind) != _essence(config, kind):
        raise ConfigError(
            f"{folder.path} belongs to a run that was started with another config; go on with that one as it was, "
            f"start anew with --anew, or change run.name"
        )
    if rounds is None and record.rounds is not None and config.run.rounds == before.run.rounds:
        wanted = with_rounds(config, record.rounds)
    check_rounds(wanted.run.rounds, closed[-1].position.round if closed else 0, folder)
    return wanted


def with_rounds(config: RunConfig, rounds: int) -> RunConfig:
    """The config with another number of rounds."""
    return replace(config, run=replace(config.run, rounds=rounds))


def check_rounds(wanted: int, done: int, folder: RunFolder) -> None:
    """Raise ConfigError for fewer rounds than have been done."""
    if wanted < done:
        raise ConfigError(
            f"the run in {folder.path} has done {done} rounds, which cannot be taken back to {wanted}; ask for more, "
            f"or start anew with --anew"
        )


def _written(record: RunRecord, folder: RunFolder) -> RunConfig:
    """The config of a run as its text says."""
    return config_from_text(record.config, where=f"the config of {folder.path}")


def _essence(config: RunConfig, kind: Kind) -> RunConfig:
    """The config without what may change from one start of a run to the next, as it does not decide what is learnt."""
    fleet = replace(FleetSection(), **{name: getattr(config.fleet, name) for name in LASTING})
    simulated = SimulateSection() if kind == "served" else replace(config.simulate, processes=None)
    run = replace(config.run, name="run", rounds=1, folder="runs", keep_states=1)
    config = replace(config, export=ExportSection(), metrics=MetricsSection())
    config = replace(config, store=StoreSection(), track=TrackSection())
    return replace(config, run=run, fleet=fleet, simulate=simulated)
