"""`fedwright.Device`: the agent inside a program of one's own, such as the loop of a camera."""

from pathlib import Path
from typing import Any

from fedwright.api.background import Background
from fedwright.api.data import source_of
from fedwright.cli.device import default_device
from fedwright.device_runtime.agent import Agent
from fedwright.device_runtime.config import AgentConfig, default_state
from fedwright.device_runtime.start import open_agent
from fedwright.protocol.address import DEVICE_USER, find_login, split_password

STOP_S = 60.0


class Device(Background):
    """An agent in a thread of this process, with a process beside it that trains; use it in a `with` block.

    broker: mqtt://host:1883, mqtts://host:8883. data: `fedwright.Dataset`, a pair (x, y), or a source such as
    npz:file.npz. options: what `fedwright device run` takes, by the names of `AgentConfig` (fleet, holdout_ratio,
    threads, bundle, once, ...).
    """

    def __init__(
        self, broker: str, data: object, *, device: str = "", state: str | Path | None = None, **options: Any
    ) -> None:
        url, given = split_password(broker)
        folder = default_state() if state is None else Path(state)
        name = device or default_device()
        self.config = AgentConfig(
            broker=url,
            device=name,
            data=source_of(data, folder / "data" / name),
            state=folder,
            login=find_login(given, options.pop("password_file", None), user=DEVICE_USER, environment={}),
            **options,
        )
        super().__init__(f"device-{name}")
        self._agent: Agent | None = None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the device is dismissed or, with once = True, the run is over; False when it still serves."""
        self._thread.join(timeout_s)
        self._raise()
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Leave the fleet; a task in hand is kept, and goes on when a device of this name serves again."""
        if self._agent is not None:
            self._agent.stop()
        self._thread.join(STOP_S)

    def _work(self) -> None:
        with open_agent(self.config) as agent:
            self._agent = agent
            self._begun.set()
            agent.run()
