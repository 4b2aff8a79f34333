"""What `fedwright device run` was asked for; the agent reads nothing else."""

from dataclasses import dataclass, field
from pathlib import Path


def default_state() -> Path:
    """Where an agent keeps its journal, blobs and checkpoints unless told otherwise."""
    return Path.home() / ".fedwright"


@dataclass(frozen=True)
class AgentConfig:
    """One agent: who it is, where its broker and its data are, what it may use.

    threads: 0 means one per core. backend: portable, classic or torch. profile: name of an emulated
    device, for the report only. trains: False makes a device that only evaluates. once: leave when the
    server says that the run is over, instead of waiting for the next one.
    """

    broker: str
    device: str
    data: str
    fleet: str = "default"
    state: Path = field(default_factory=default_state)
    threads: int = 0
    backend: str = "portable"
    holdout_ratio: float = 0.2
    profile: str = ""
    trains: bool = True
    once: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
