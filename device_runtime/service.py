"""A systemd unit that keeps the agent running: restarted whatever happens, and shut off from the rest of the board."""

import os
import pwd
import sys
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from string import Template

from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.data.sources import absolute
from fedwright.protocol import topics
from fedwright.protocol.address import PASSWORD_VARIABLE
from fedwright.protocol.errors import ConfigError, DeviceError
from fedwright.protocol.support.files import write_private
from fedwright.protocol.support.plugins import PYTHON, is_reference

SYSTEM_UNITS = Path("/etc/systemd/system")
# systemd makes this folder for the account of the unit (StateDirectory).
SYSTEM_STATE = Path("/var/lib/fedwright")

# A user's own systemd may not make these name spaces, so only a system unit has them. Devices stay visible: a GPU.
_SANDBOX = """User={user}
StateDirectory=fedwright
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths=-{state}
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
CapabilityBoundingSet=
"""


@dataclass(frozen=True)
class Unit:
    """A unit file, the folder and account it works with (none for a unit of the user's own), and what to type next.

    password: of the broker; it goes into a file of its own that only its owner can read.
    """

    path: Path
    text: str
    state: Path
    account: str | None
    next_steps: tuple[str, ...]
    password: str | None = field(default=None, repr=False)


def make_unit(config: AgentConfig, *, system: bool, unit_dir: Path | None = None, user: str | None = None) -> Unit:
    """The unit for an agent; a system unit runs as `user` (default: whoever asks, also behind sudo)."""
    topics.check_name(config.device, what="device id")
    topics.check_name(config.fleet, what="fleet")
    config = _anchored(config)
    name = f"fedwright-{config.fleet}-{config.device}.service"
    folder = unit_dir or (SYSTEM_UNITS if system else Path.home() / ".config/systemd/user")
    account = _account(user) if system else None
    password = config.login.password if config.login is not None and config.password_file is None else None
    template = resources.files("fedwright.device_runtime").joinpath("fedwright-device.service").read_text("utf-8")
    text = Template(template).substitute(
        device=config.device,
        fleet=config.fleet,
        command=" ".join(quoted(word) for word in (*_program(), "device", "run", *arguments(config))),
        environment=_environment(config)
        + (f"EnvironmentFile={quoted(str(secret(folder / name)))}\n" if password else ""),
        sandbox=_SANDBOX.format(user=account, state=quoted(str(config.state))) if system else "",
        target="multi-user.target" if system else "default.target",
    )
    control = "sudo systemctl" if system else "systemctl --user"
    steps = [f"{control} daemon-reload", f"{control} enable --now {name}"]
    if not system:
        steps.append("loginctl enable-linger    # keeps it running when nobody is logged in")
    return Unit(folder / name, text, config.state, account, tuple(steps), password)


def secret(unit: Path) -> Path:
    """The file beside a unit that holds the broker's password."""
    return unit.with_suffix(".env")


def install(unit: Unit) -> None:
    """Write the unit and make the state folder it may write to."""
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
        unit.path.write_text(unit.text, encoding="utf-8")
        if unit.password is not None:
            write_private(secret(unit.path), f"{PASSWORD_VARIABLE}={unit.password}\n")
        if unit.state != SYSTEM_STATE and not unit.state.exists():
            unit.state.mkdir(parents=True, mode=0o700)
            if unit.account is not None and os.getuid() == 0:
                entry = pwd.getpwnam(unit.account)
                os.chown(unit.state, entry.pw_uid, entry.pw_gid)
    except OSError as err:
        raise DeviceError(
            f"cannot write {err.filename}: {err.strerror}; run it with sudo or install with --user"
        ) from err


def arguments(config: AgentConfig) -> list[str]:
    """The options of `fedwright device run` that give this config again."""
    words = ["--broker", config.broker, "--device", config.device, "--data", config.data]
    if config.further:
        words += [word for edge in (config.fleet, *config.further) for word in ("--edge", edge)]
        words += ["--patience", repr(config.patience_s)]
    else:
        words += ["--fleet", config.fleet]
    words += ["--state", str(config.state), "--threads", str(config.threads), "--backend", config.backend]
    words += ["--provider", config.provider, "--holdout", repr(config.holdout_ratio)]
    words += ["--keep-alive", str(config.keep_alive_s)]
    optional = {
        "--profile": config.profile or None,
        "--bundle": config.bundle,
        "--policy": config.policy,
        "--password-file": config.password_file,
        "--max-temperature": config.most_temperature_c,
        "--min-battery": config.least_battery_ratio,
        "--max-load": config.most_load_ratio,
        "--nice": config.nice,
        "--round-seconds": config.round_s,
        "--round-mb": config.round_mb,
        "--noise": config.noise_ratio or None,
        "--model": config.model or None,
        "--tell": ",".join(config.tell) or None,
        "--metrics-port": config.metrics or None,
    }
    for option, value in optional.items():
        if value is not None:
            words += [option, str(value)]
    flags = {"--once": config.once, "--evaluate-only": not config.trains, "--hide-counts": config.hide_counts}
    return words + [flag for flag, given in flags.items() if given]


def quoted(word: str) -> str:
    """A word as systemd reads it back: specifiers and variables escaped, quotes where needed."""
    if any(character in word for character in "\n\r\0"):
        raise ConfigError(f"{word!r} holds a line break, which a unit file cannot carry")
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = word and not any(character in word for character in " \t'\";\\")
    return word if plain else f'"{word}"'


def _anchored(config: AgentConfig) -> AgentConfig:
    """Paths made absolute, because a service starts in the root folder."""
    return replace(
        config,
        state=config.state.expanduser().absolute(),
        data=absolute(config.data),
        bundle=None if config.bundle is None else config.bundle.expanduser().absolute(),
        password_file=None if config.password_file is None else config.password_file.expanduser().absolute(),
        policy=None if config.policy is None else config.policy.expanduser().absolute(),
    )


def _program() -> list[str]:
    script = Path(sys.executable).parent / "fedwright"
    if not script.exists():
        raise ConfigError(f"no command {script}; install the package with pip into the environment of {sys.executable}")
    return [str(script)]


def _environment(config: AgentConfig) -> str:
    """Where the module of a `python:` source is found, because a service starts in the root folder."""
    if not is_reference(config.data):
        return ""
    root = Path.cwd() / config.data.removeprefix(PYTHON).partition(":")[0].partition(".")[0]
    here = [str(root.parent)] if root.is_dir() or root.with_suffix(".py").exists() else []
    path = os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return f"Environment={quoted('PYTHONPATH=' + path)}\n" if path else ""


def _account(wanted: str | None) -> str:
    name = wanted or os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    try:
        return pwd.getpwnam(name).pw_name
    except KeyError as err:
        raise ConfigError(f"there is no user {name!r} to run the service as; give one with --run-as") from err
