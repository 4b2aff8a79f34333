"""What a device did over a run."""

from dataclasses import dataclass


@dataclass
class DeviceRecord:
    """One device over all rounds; accuracies are those of the model it was sent, on its own held-out data.

    width: mean share of the channels in each group of the model it was last sent. answers: its updates, measurements
    among them. task_s: wall-clock seconds of its work in rounds. need_bytes: the most memory that the server expected
    one of its tasks to need. macs: of one prediction by the model it was last sent. energy_j: in all, where the board
    tells.
    """

    device: str
    samples: int = 0
    width: float = 1.0
    rounds: int = 0
    answers: int = 0
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    task_s: float = 0.0
    cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    need_bytes: int = 0
    macs: int = 0
    energy_j: float | None = None

    @property
    def round_s(self) -> float:
        """Mean wall-clock seconds the device worked per round."""
        return self.task_s / self.rounds if self.rounds else 0.0
