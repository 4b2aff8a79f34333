"""`fedwright.simulate`: a whole fleet in this machine, from a few arguments."""

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fedwright.api import given
from fedwright.api.data import source_of, sources_of
from fedwright.api.models import model_name
from fedwright.api.results import simulation_result
from fedwright.api.runs import Run
from fedwright.api.starter import config_with
from fedwright.cli.progress import Progress, without_arrivals
from fedwright.protocol.errors import ConfigError, DataError
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.run_folder.folder import folder_of
from fedwright.server_runtime.run_reader import continued
from fedwright.simulation.simulate import simulate as run_simulation

Settings = Mapping[str, Mapping[str, Any]]
WHERE = "simulate()"


def simulate(
    *,
    method: object = "fedavg",
    model: object = None,
    data: object = "digits",
    devices: int | None = None,
    rounds: int | None = None,
    seed: int = 1,
    settings: Settings | None = None,
    keep: str | Path | None = None,
    progress: bool = True,
    on_event: events.Observer = events.ignore,
) -> Run:
    """Train a fleet of simulated devices to its end.

    method: a name from `fedwright methods`, or a subclass of `fedwright.Method`. model: a `torch.nn.Module`, its class,
    a function that makes one, or a name from `fedwright models`. data: `fedwright.Dataset`, a pair (x, y), a torch
    Dataset, a table with a column `label`, a path, a source such as npz:file.npz, or a name from `fedwright datasets`,
    which is dealt to the devices; or {"kitchen": (x, y), "hall": (x, y)}, the data of each device by its name.
    settings: any others of a config, by section: {"train": {"epochs": 2}, "method": {"width": 0.5}}. keep: a folder for
    the run, from which the same call goes on; without one it lies in a temporary folder that goes with the result.
    on_event: called with every event of the run (`fedwright.server_runtime.rounds.events`), such as RoundClosed; an
    exception that it raises ends the call.
    """
    with ExitStack() as stack:
        folder = _temporary(stack) if keep is None else Path(keep)
        wanted = _changes(
            settings or {},
            {
                "run": {"name": folder.name, "folder": str(folder.parent), "seed": seed, "rounds": rounds},
                "model": {"model": None if model is None else model_name(model)},
                "method": {"name": _method_name(method)},
                "simulate": {"devices": devices, **_data(data, folder, devices)},
            },
        )
        stack.enter_context(given.told_by_label(data=wanted["simulate"].get("data", "")))
        config, text = config_with(wanted, where=WHERE)
        config = continued(config, kind="simulated")
        seen = Progress(config.run.rounds, config.simulate.devices) if progress else nullcontext(events.ignore)
        with _stopped_plainly(config, kept=keep is not None), seen as shown:
            found = run_simulation(config, text, observer=_both(without_arrivals(shown), on_event))
        run = Run(config, simulation_result(config, found))
        weakref.finalize(run, stack.pop_all().close)
        return run


def _temporary(stack: ExitStack) -> Path:
    parent = Path(tempfile.mkdtemp(prefix="fedwright-"))
    stack.callback(shutil.rmtree, parent, ignore_errors=True)
    return parent / "run"


def _changes(settings: Settings, arguments: Settings) -> dict[str, dict[str, Any]]:
    """The settings with what was given as arguments, which count more; None is what was not given."""
    for name, own in settings.items():
        if not isinstance(own, Mapping):
            raise ConfigError(f"settings has {name!r} = {own!r} but holds sections: {{'train': {{'epochs': 2}}}}")
    said = {name: {key: value for key, value in own.items() if value is not None} for name, own in arguments.items()}
    return {name: {**settings.get(name, {}), **said.get(name, {})} for name in {**settings, **said}}


def _data(data: object, folder: Path, devices: int | None) -> dict[str, Any]:
    """A data set by its name, a source of the user's own, or one for each device."""
    if isinstance(data, Mapping):
        if devices not in (None, len(data)):
            raise ConfigError(f"devices is {devices} but the data names {len(data)}; leave devices out")
        return {"data": sources_of(data, folder / "data"), "devices": len(data)}
    if isinstance(data, str) and ":" not in data and not Path(data).exists():
        # A name of a data set has no ending and lies in no folder.
        if Path(data).suffix or len(Path(data).parts) > 1:
            raise DataError(f"there is no file or folder {data!r}; check it, or give a name from `fedwright datasets`")
        return {"dataset": data}
    return {"data": source_of(data, folder / "data")}


def _method_name(method: Any) -> str:
    """A name is one already; a class has a place, or gets a name in this process."""
    if isinstance(method, str):
        return method
    if not isinstance(method, type) or not issubclass(method, Method):
        raise ConfigError(
            f"{method!r} is no method; give a name from `fedwright methods` or a subclass of fedwright.Method"
        )
    return given.place_of(method) or given.keep(method, method, label=method.__name__)


def _both(shown: events.Observer, told: events.Observer) -> events.Observer:
    def observe(event: events.Event) -> None:
        shown(event)
        told(event)

    return observe


@contextmanager
def _stopped_plainly(config: RunConfig, *, kept: bool) -> Iterator[None]:
    """Ctrl-C ends a simulation with one sentence, without what lies below."""
    try:
        yield
    except KeyboardInterrupt:
        again = f"the same call goes on from {folder_of(config).path}" if kept else "with keep=FOLDER it could go on"
        raise KeyboardInterrupt(f"simulate was stopped; {again}") from None
