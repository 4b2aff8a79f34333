"""The section [track] of a config: which tools for experiments get each round's figures."""

from dataclasses import dataclass, field
from typing import Literal

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import hint

ToolName = Literal["tensorboard", "mlflow", "wandb", "jsonl"]


@dataclass(frozen=True)
class TrackSection:
    """Where figures go besides the run's own folder."""

    to: tuple[ToolName, ...] = field(default=(), metadata=hint("any of tensorboard, mlflow, wandb, jsonl"))
    folder: str | None = field(default=None, metadata=hint("what they write; absent: the folder track of the run"))
    project: str = field(default="fedwright", metadata=hint("the experiment of mlflow, the project of wandb"))

    def __post_init__(self) -> None:
        """Check values."""
        if len(set(self.to)) < len(self.to):
            raise ConfigError("to names a tool twice; name each once")
        if not self.project:
            raise ConfigError("project is empty; name one such as 'fedwright'")
