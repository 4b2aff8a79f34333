"""What a run tells a tool for experiments, and which tools there are."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedwright.protocol.errors import ConfigError


@dataclass(frozen=True)
class Described:
    """What is known of a run before its first round.

    identity: stays when the run is resumed. settings: the config, flat. ledger: what its method has of its paper.
    """

    name: str
    identity: str
    folder: Path
    project: str = "fedwright"
    config: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    ledger: str = ""


class Tracker(Protocol):
    """One tool. Made with what describes the run; a run that is resumed goes on in the same place.

    - `numbers` MAY come twice for a step after a rollback; the later ones count.
    - `close` MUST leave what came before readable by the tool itself.
    """

    def numbers(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures after a round."""
        ...

    def file(self, path: Path) -> None:
        """Keep a file with the run: its model, what each device did."""
        ...

    def close(self) -> None:
        """No more comes."""
        ...


@dataclass(frozen=True)
class Tool:
    """Where a tool's tracker is, and the package and the extra that it needs."""

    module: str
    package: str = ""
    extra: str = ""


TOOLS = {
    "tensorboard": Tool("tensorboard", "tensorboard", "tensorboard"),
    "mlflow": Tool("mlflow", "mlflow", "mlflow"),
    "wandb": Tool("wandb", "wandb", "wandb"),
    "jsonl": Tool("jsonl"),
}


def check_tools(names: Sequence[str]) -> None:
    """Raise ConfigError for a tool whose package is not here."""
    for name in names:
        if name not in TOOLS:
            raise ConfigError(f"there is no tool {name!r} to track with; choose from {', '.join(TOOLS)}")
        tool = TOOLS[name]
        if tool.package and importlib.util.find_spec(tool.package) is None:
            raise ConfigError(
                f"track.to names {name}, whose package is not here; install it with "
                f'pip install "fedwright[{tool.extra}]"'
            )


def open_tracker(name: str, described: Described) -> Tracker:
    """The tracker of a tool; imports that tool."""
    made: Tracker = importlib.import_module(f"{__package__}.{TOOLS[name].module}").open_tracker(described)
    return made
