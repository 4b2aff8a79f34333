"""Figures for Weights & Biases; nothing leaves this machine unless WANDB_MODE is online; `wandb sync` sends it."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import wandb

from fedwright.server_runtime.track.base import Described


class WandbRun:
    """A run of theirs under the identity of ours, so that one which is resumed is the same."""

    def __init__(self, described: Described) -> None:
        described.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=described.project,
            name=described.name,
            id=described.identity[:32],
            resume="allow",
            mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
            dir=str(described.folder),
            config=dict(described.settings),
            # What this process prints and which machine it runs on is nobody's business.
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
        )
        self._files = Path(self._run.dir)
        (self._files / "config.toml").write_text(described.config, encoding="utf-8")
        (self._files / "ledger.txt").write_text(described.ledger, encoding="utf-8")

    def numbers(self, step: int, figures: Mapping[str, float]) -> None:
        """A point of every curve; theirs has a count of its own that never goes back, so ours is one of the figures."""
        self._run.log({"round": step, **figures})

    def file(self, path: Path) -> None:
        """Keep a copy in the run's folder, from which it is sent."""
        shutil.copyfile(path, self._files / path.name)

    def close(self) -> None:
        """Have everything on the disk, or sent."""
        self._run.finish()


def open_tracker(described: Described) -> WandbRun:
    """A tracker for one run."""
    return WandbRun(described)
