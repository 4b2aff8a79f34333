"""The demo: a broker, the server in this process and emulated devices as processes of their own, on real data."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfile

import numpy as np

from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.device import EmulatedOutcome as Exit
from fedwright.device_runtime.emulate.device import agent_command
from fedwright.device_runtime.emulate.fleet import EmulatedFleet, device_ids, fitting_slowdown
from fedwright.device_runtime.emulate.mishaps import Mishaps
from fedwright.device_runtime.emulate.profiles import load_fleet, load_profile
from fedwright.protocol.errors import ConfigError, DeviceError, FedwrightError
from fedwright.protocol.link import connect
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig, config_from_text
from fedwright.server_runtime.methods.registry import find
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.rounds.store.device_record import DeviceRecord
from fedwright.simulation import datasets
from fedwright.simulation.partition import Least, Split, by_dirichlet

DATASET = "digits"
ALPHA = 0.3
# A fifth is held out; fewer would make a device's accuracy a coin toss.
LEAST = Least(rows=60)
FLEET = "demo"
# Examples of the server's own, for the methods that need some.
PUBLIC, PUBLIC_ROWS = "public.npz", 200
LEAVE_TIMEOUT_S = 20.0

CONFIG = """
[run]
name = "demo"
folder = {folder}
seed = {seed}
rounds = {rounds}

[fleet]
broker = {broker}
name = "demo"
devices = {devices}
deadline_s = 120
join_timeout_s = 120

[model]
model = {model}

[method]
name = {method}
{params}

[public]
file = {public}

[train]
epochs = 4
batch = 16
learning_rate = 0.05

[train.optimizer]
kind = "sgd"
momentum = 0.9
"""


@dataclass(frozen=True)
class DemoOptions:
    """What the demo was asked for; `keep` is a folder that holds everything afterwards."""

    method: str = "hasa"
    devices: int = 8
    rounds: int = 10
    seed: int = 1
    keep: Path | None = None
    fleet: str = FLEET
    model: Path = Path("runs/demo/model.onnx")


@dataclass(frozen=True)
class DemoDevice:
    """One line of the result: what the server knows of a device, and what its process used in all."""

    profile: str
    record: DeviceRecord
    exit: Exit


@dataclass(frozen=True)
class DemoResult:
    """What the demo ends in."""

    options: DemoOptions
    broker: str
    devices: dict[str, DemoDevice]
    metrics: list[dict[str, float]]
    model: Path


def run_demo(options: DemoOptions, observer: events.Observer = events.ignore) -> DemoResult:
    """Run the demo to its end; everything it started has ended when it returns or raises."""
    kinds = list(load_fleet(options.fleet).kinds(options.devices))
    members = device_ids(kind.name for kind in kinds)
    slowdown = fitting_slowdown(profile for _, profile in members)
    with _folder(options) as folder, ExitStack() as stack:
        sources = deal_data([device for device, _ in members], folder / "data", seed=options.seed)
        broker = stack.enter_context(Broker())
        config, text = demo_config(options, folder, broker.url)
        link = connect(broker.url, client_id="demo-server")
        stack.callback(link.close)
        fleet = stack.enter_context(EmulatedFleet(folder / "logs", slowdown=slowdown))
        for (device, profile), kind in zip(members, kinds, strict=True):
            agent = _agent(device, profile, config=config, data=sources[device], folder=folder)
            agent = replace(agent, broker=fleet.link(device, kind, broker.url))
            fleet.start(device, kind, agent_command(agent))
        mishaps = stack.enter_context(Mishaps(fleet, seed=options.seed))
        try:
            outcome = runs.execute(config, text, link=link, observer=observer)
        except FedwrightError as err:
            raise _with_reason(err, fleet) from err
        mishaps.cease()
        fleet.wait(LEAVE_TIMEOUT_S)
        exits = fleet.stop()
        model = _take_model(outcome.model, options)
    devices = {
        device: DemoDevice(profile, outcome.devices.get(device) or DeviceRecord(device), exits[device])
        for device, profile in members
    }
    return DemoResult(options, broker.kind, devices, outcome.metrics, model)


def demo_config(options: DemoOptions, folder: Path, broker: str) -> tuple[RunConfig, str]:
    """The config of the demo, as data and as text."""
    text = CONFIG.format(
        folder=json.dumps(str(folder)),
        seed=options.seed,
        rounds=options.rounds,
        broker=json.dumps(broker),
        devices=options.devices,
        method=json.dumps(options.method),
        model=json.dumps(find(options.method).model),
        params=_hasa_params(options.fleet) if options.method == "hasa" else "",
        public=json.dumps(str(folder / "data" / PUBLIC)),
    )
    return config_from_text(text, where="demo"), text


def _hasa_params(fleet: str) -> str:
    """Half of the model for the average sample; a board's speed caps its width, because a step's work grows as r²."""
    profiles = sorted(set(load_fleet(fleet).profiles()))
    caps = ", ".join(f"{json.dumps(profile)} = {load_profile(profile).cpu_share ** 0.5:.2f}" for profile in profiles)
    return f"budget = 0.5\nleast = 0.3\nmost = 1.0\ntolerance = 1e-3\ncaps = {{ {caps} }}"


def deal_data(devices: list[str], folder: Path, *, seed: int) -> dict[str, str]:
    """Give each device its own share of the digits as a file, and the server some; the data source of each device."""
    data = datasets.load(DATASET)
    x = np.concatenate([data.x_train, data.x_test])
    y = np.concatenate([data.y_train, data.y_test]).astype(np.int64)
    folder.mkdir(parents=True)
    np.savez(folder / PUBLIC, x=x[:PUBLIC_ROWS], y=y[:PUBLIC_ROWS])
    x, y = x[PUBLIC_ROWS:], y[PUBLIC_ROWS:]
    shares = by_dirichlet(
        y, len(devices), alpha=ALPHA, rng=np.random.default_rng(seed), split=Split(test=0.2), least=LEAST
    )
    sources = {}
    for device, share in zip(devices, shares.values(), strict=True):
        path = folder / f"{device}.npz"
        np.savez(
            path,
            x=x[share.train],
            y=y[share.train],
            x_holdout=x[share.test],
            y_holdout=y[share.test],
            classes=np.int64(len(data.classes)),
        )
        sources[device] = f"npz:{path}"
    return sources


@contextmanager
def _folder(options: DemoOptions) -> Iterator[Path]:
    """Where the demo keeps its state: a folder that stays, or a temporary one."""
    if options.keep is None:
        with tempfile.TemporaryDirectory(prefix="fedwright-demo-") as name:
            yield Path(name)
        return
    if options.keep.exists() and any(options.keep.iterdir()):
        raise ConfigError(f"folder {options.keep} is not empty; name a new one to keep the demo in")
    options.keep.mkdir(parents=True, exist_ok=True)
    yield options.keep.absolute()


def _agent(device: str, profile: str, *, config: RunConfig, data: str, folder: Path) -> AgentConfig:
    return AgentConfig(
        broker=config.fleet.broker,
        device=device,
        data=data,
        fleet=config.fleet.name,
        state=folder / "devices",
        threads=1,
        profile=profile,
        once=True,
    )


def _take_model(model: Path | None, options: DemoOptions) -> Path:
    """The exported model where it stays."""
    assert model is not None
    if options.keep is not None:
        return model
    target = options.model.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    copyfile(model, target)
    return target


def _with_reason(error: FedwrightError, fleet: EmulatedFleet) -> FedwrightError:
    """The error, or what a device said that ended badly."""
    for device, exit_ in fleet.ended().items():
        if exit_.exit_code != 0:
            said = fleet.devices[device].log_file.read_text(errors="replace").strip().splitlines() or ["nothing"]
            return DeviceError(f"device {device} ended with exit code {exit_.exit_code} and said: {said[-1]}")
    return error
