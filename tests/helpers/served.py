"""Runs by command: a config for `fedwright server run`, and agents in processes of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwright.device_runtime.config import AgentConfig
from fedwright.device_runtime.emulate.device import agent_command
from fedwright.device_runtime.emulate.fleet import EmulatedFleet
from fedwright.device_runtime.emulate.profiles import DeviceProfile

# Whoever is late on a busy machine still comes in time.
PATIENT = "devices = 2\njoin_timeout_s = 60\ndeadline_s = 60"


def served_config(broker: str, *, name: str = "night", rounds: int = 2, fleet: str = PATIENT, more: str = "") -> str:
    """FedAvg of a small model with two devices; `fleet` and `more` are lines of TOML."""
    return f"""
[run]
name = "{name}"
rounds = {rounds}
[fleet]
broker = "{broker}"
{fleet}
[model]
model = "mlp"
{more}
[method]
name = "fedavg"
"""


def start_agents(
    fleet: EmulatedFleet,
    broker: str,
    folder: Path,
    data: Mapping[str, str],
    *,
    profiles: Mapping[str, DeviceProfile] | None = None,
    **more: Any,
) -> None:
    """An agent for every device with its data, started by its command; their state is in folder/state."""
    for device, source in data.items():
        config = AgentConfig(broker=broker, device=device, data=source, state=folder / "state", threads=1, **more)
        fleet.start(device, (profiles or {}).get(device, "laptop"), agent_command(config))
