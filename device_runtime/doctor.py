"""What stands between this board and a working agent, one finding at a time."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from fedwright.device_runtime import facts
from fedwright.device_runtime.config import AgentConfig
from fedwright.protocol.class_names import shown
from fedwright.protocol.errors import FedwrightError
from fedwright.protocol.support.files import lock_folder

Level = Literal["ok", "warn", "fail"]

OLDEST_PYTHON = (3, 10)
OLDEST_ONNXRUNTIME = (1, 19, 2)
PACKAGES = ("numpy", "paho-mqtt", "msgspec", "safetensors", "psutil", "cryptography")

# Any of these will do; from Python 3.14 on none is needed.
COMPRESSION = ("backports.zstd", "zstandard")

# An agent after start-up takes about 60 MB; a small model's step some 20 to 50 more.
FAIL_FREE_BYTES = 100e6
WARN_FREE_BYTES = 250e6
FAIL_DISK_BYTES = 50e6
WARN_DISK_BYTES = 500e6
WARN_TEMPERATURE_C = 80.0
WARN_BATTERY_RATIO = 0.2

_IMPORT_TIMEOUT_S = 60
_INSTALL = 'pip install "fedwright[device]"'


@dataclass(frozen=True)
class Finding:
    """One thing looked at; `remedy` says what to do unless all is well."""

    level: Level
    what: str
    remedy: str = ""


def diagnose(config: AgentConfig, *, root: Path = facts.ROOT) -> list[Finding]:
    """Look at everything an agent with this config depends on; an empty broker or data is not looked at."""
    return [
        _python(),
        *(_package(name) for name in PACKAGES),
        compression(),
        *_runtime(),
        *_provider(config.provider),
        _board(root),
        _memory(root),
        *_sensors(root),
        _disk(config.state),
        *_policy(config),
        *_certificate(config),
        *_broker_findings(config),
        _data(config),
    ]


def _python() -> Finding:
    found = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("fail", found, "install Python 3.10 or newer")
    return Finding("ok", found)


def _package(name: str) -> Finding:
    version = _version(name)
    if version is None:
        return Finding("fail", f"{name} is not installed", _INSTALL)
    return Finding("ok", f"{name} {version}")


def compression() -> Finding:
    """What packs and unpacks what travels."""
    if sys.version_info >= (3, 14):
        return Finding("ok", "compression by the standard library")
    found = next((name for name in COMPRESSION if _version(name) is not None), COMPRESSION[0])
    return _package(found)


def _runtime() -> list[Finding]:
    installed = {name: version for name in facts.RUNTIMES if (version := _version(name)) is not None}
    if not installed:
        return [Finding("fail", "onnxruntime is not installed", _INSTALL)]
    name, version = next(iter(installed.items()))
    findings = [_runtime_version(name, version), _runtime_import(name, version)]
    if len(installed) > 1:
        both = " and ".join(installed)
        findings.append(Finding("warn", f"{both} overwrite each other's files", f"pip uninstall all but {name}"))
    return findings


def _runtime_version(name: str, version: str) -> Finding:
    if name.startswith("onnxruntime-training"):
        return Finding("ok", f"{name} {version} (classic backend)")
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if numbers < OLDEST_ONNXRUNTIME:
        return Finding("fail", f"{name} {version} is too old", "pip install --upgrade onnxruntime")
    if numbers == (1, 21, 0) and platform.machine() in ("aarch64", "arm64"):
        return Finding(
            "warn",
            f"{name} 1.21.0 stops with an illegal instruction on some ARM boards (Raspberry Pi 4)",
            "pip install --upgrade onnxruntime",
        )
    return Finding("ok", f"{name} {version}")


def _runtime_import(name: str, version: str) -> Finding:
    """Import the runtime in a process of its own, because a build for another processor dies by a signal."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import onnxruntime"], capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return Finding("warn", f"whether {name} works here could not be tried ({err})", "try again on a quiet board")
    if done.returncode < 0:
        number = signal.Signals(-done.returncode).name
        return Finding("fail", f"{name} {version} dies here with {number}", "pip install another onnxruntime version")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("fail", f"{name} {version} cannot be imported: {reason}", f"{_INSTALL} --force-reinstall")
    return Finding("ok", f"{name} {version} loads on this processor")


def _provider(provider: str) -> list[Finding]:
    """Whether the runtime has the provider that was asked for; the CPU it always has."""
    if provider == "cpu":
        return []
    try:
        from fedwright.device_runtime.train.session import pick_provider

        found = pick_provider(provider)
    except ImportError:
        return []
    except FedwrightError as err:
        return [Finding("fail", str(err), "give another --provider")]
    return [Finding("ok", f"provider {provider} is {found}")]


def _board(root: Path) -> Finding:
    return Finding("ok", f"board {facts.board_model(root)}, {platform.machine()}, {facts.cores()} cores")


def _memory(root: Path) -> Finding:
    free = facts.free_bytes(root)
    found = f"memory {free / 1e6:.0f} MB free of {facts.ram_bytes(root) / 1e6:.0f} MB"
    if free < FAIL_FREE_BYTES:
        return Finding("fail", found, "stop other programs or raise the memory limit of this process")
    if free < WARN_FREE_BYTES:
        return Finding("warn", found, "only small models will fit; stop other programs to free memory")
    return Finding("ok", found)


def _sensors(root: Path) -> list[Finding]:
    health = facts.health(root)
    findings = []
    if health.temperature_c is not None:
        hot = health.temperature_c >= WARN_TEMPERATURE_C
        level: Level = "warn" if hot else "ok"
        findings.append(
            Finding(level, f"temperature {health.temperature_c:.0f} °C", "cool the board, it slows down" if hot else "")
        )
    if health.clocks is not None:
        most = health.clocks.most_hz
        limit = f" of at most {most / 1e9:.2f}" if most else ""
        findings.append(Finding("ok", f"clock {health.clocks.now_hz / 1e9:.2f}{limit} GHz"))
    if health.throttled:
        findings.append(
            Finding("warn", f"the board holds back: {', '.join(health.throttled)}", "use a stronger supply or a fan")
        )
    if health.battery_ratio is not None:
        low = bool(health.on_battery) and health.battery_ratio < WARN_BATTERY_RATIO
        level = "warn" if low else "ok"
        findings.append(Finding(level, f"battery {health.battery_ratio:.0%}", "charge it" if low else ""))
    if health.power_mode is not None:
        findings.append(Finding("ok", f"power mode {health.power_mode}"))
    return findings


def _disk(state: Path) -> Finding:
    folder = state
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return Finding("fail", f"state folder {state} is not writable", "give another one with --state")
    free = shutil.disk_usage(folder).free
    found = f"state folder {state}, {free / 1e9:.1f} GB free"
    if free < FAIL_DISK_BYTES:
        return Finding("fail", found, "free some space or give another folder with --state")
    if free < WARN_DISK_BYTES:
        return Finding("warn", found, "large models will not fit; free some space")
    return Finding("ok", found)


def _policy(config: AgentConfig) -> list[Finding]:
    """What the owner lets servers ask, line by line."""
    try:
        from fedwright.device_runtime.policy import read_policy

        found = read_policy(config.policy)
    except ImportError as err:
        return [Finding("fail", f"policy not read, {err.name} is missing", _INSTALL)]
    except FedwrightError as err:
        return [Finding("fail", str(err), "`fedwright device policy` prints a policy that is right")]
    if found.path is None:
        return [Finding("ok", "no policy file; `fedwright device policy` prints the defaults, which are in force")]
    return [Finding("ok", f"policy {found.path}: {'; '.join(found.policy.lines())}")]


def _certificate(config: AgentConfig) -> list[Finding]:
    """Whether the certificate of an enrolled device is good for some time."""
    if config.bundle is None:
        return []
    try:
        bundle = config.identity()
    except ImportError as err:
        return [Finding("fail", f"certificate not read, {err.name} is missing", _INSTALL)]
    except FedwrightError as err:
        return [Finding("fail", str(err), "enroll the device")]
    if bundle is None or not bundle.info.expires_s:
        return []
    ending = bundle.ending(time.time())
    if ending:
        level: Level = "fail" if bundle.info.expires_s < time.time() else "warn"
        return [Finding(level, *ending.split("; "))]
    last = time.strftime("%Y-%m-%d", time.localtime(bundle.info.expires_s))
    return [Finding("ok", f"certificate of {bundle.info.device}, good until {last}")]


def is_served(config: AgentConfig) -> bool:
    """Whether an enrolled agent runs here: a broker lets its certificate in once, and we would throw it out."""
    folder = config.state / config.fleet / config.device
    if config.bundle is None or not folder.is_dir():
        return False
    lock = lock_folder(folder)
    if lock is not None:
        lock.close()
    return lock is None


def _broker(config: AgentConfig) -> Finding:
    if not config.broker:
        return Finding("warn", "broker not tried", "give it with --broker mqtt://host:1883")
    try:
        from fedwright.protocol.link import connect

        if is_served(config):
            return Finding("ok", f"broker {config.broker} not tried: the agent that runs here has the one connection")
        connect(config.broker, client_id=f"{config.device}-doctor", tls=config.tls(), login=config.login).close()
    except ImportError as err:
        return Finding("fail", f"broker not tried, {err.name} is missing", _INSTALL)
    except FedwrightError as err:
        return Finding("fail", f"broker {config.broker}: {err}", "check the address, the network and the server")
    return Finding("ok", f"broker {config.broker} answers")


def _broker_findings(config: AgentConfig) -> list[Finding]:
    """Whether the broker answers, and what it lets through."""
    answers = _broker(config)
    if answers.level != "ok" or is_served(config):
        return [answers]
    from fedwright.device_runtime.broker_limits import DEPTHS, SIZES_KIB, find_limits
    from fedwright.protocol.link import connect

    name = f"{config.device}-doctor"
    found = find_limits(
        lambda: connect(config.broker, client_id=name, tls=config.tls(), login=config.login), config.device
    )
    if not found.largest_kib:
        return [answers, Finding("warn", "broker sends no probe back", "let devices use fedwright/probe/DEVICE")]
    shown = f"broker speaks MQTT {'5' if found.version == 5 else '3.1.1'} and passes chunks of {found.largest_kib} KiB"
    if found.largest_kib < SIZES_KIB[-1]:
        return [answers, Finding("warn", shown, f"set fleet.chunk_kib = {found.largest_kib} on the server")]
    if 0 < found.depth < DEPTHS[0]:
        return [answers, Finding("fail", f"{shown}, but no topics of {DEPTHS[0]} levels", "allow deeper topics")]
    return [answers, Finding("ok", shown)]


def _data(config: AgentConfig) -> Finding:
    if not config.data:
        return Finding("warn", "data not tried", "give it with --data npz:file.npz")
    try:
        from fedwright.device_runtime.data import load

        found = load(config.data, holdout_ratio=config.holdout_ratio, seed=0)
    except ImportError as err:
        return Finding("fail", f"data not tried, {err.name} is missing", _INSTALL)
    except FedwrightError as err:
        return Finding("fail", f"data: {err}", "mend the data or give another source with --data")
    if not found.input_shape:
        return Finding(
            "ok", f"no data, only classes ({config.data.partition(':')[2]}): it gets a model and never trains"
        )
    shape = "x".join(str(size) for size in found.input_shape)
    counts = f"{len(found.y)} samples of {shape}, {len(found.y_holdout)} held out, {found.classes} classes"
    if found.class_names:
        counts += f" ({shown(found.class_names)})"
    return Finding("ok", f"data {config.data}: {counts}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
