"""A fleet in this process that trains nothing: honest devices send small changes, the others what a test drew."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwright.protocol import artifact as artifacts
from fedwright.protocol import tensors
from fedwright.protocol.artifact import CLASS_COUNTS, returned_shapes
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.messages import DataSummary, Report, Stats, Task, Update
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig
from fedwright.server_runtime.public_data.examples import PublicData
from fedwright.server_runtime.rounds import events
from fedwright.server_runtime.transport.device_channel import Heard

# Settings with which the server itself trains little.
BRIEF = "pretrain_epochs = 1\ncompress_epochs = 1\nagain_epochs = 1\ndilate_epochs = 1\nweigh_epochs = 1"
QUICK = {"fedconv": BRIEF, "slice-tuned": BRIEF}
STATS = Stats(samples=24, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
Answer = Callable[[Task, dict[str, np.ndarray]], Any]
"""What a device says to a task, given the tensors that an honest one would send."""


def usual_summary(shape: tuple[int, ...], classes: int) -> DataSummary:
    """What a device with some samples of every class says of them."""
    counts = [24 // classes] * classes
    return DataSummary(24, 8, list(shape), classes, class_counts=counts, descriptor=[0.25] * 16, pixel_std=0.1)


def wanted_tensors(task: Task, blobs: BlobStore) -> dict[str, np.ndarray]:
    """Tensors as the task asks for them: a small change, class means of one sample each, logits near zero."""
    manifest = artifacts.unpack(blobs.read(task.artifact.sha256)).manifest
    rng = np.random.default_rng(list(task.task.encode()))
    kinds = {slot.name: slot.dtype for slot in manifest.slots}
    found = {
        name: np.asarray(0.01 * rng.standard_normal(shape)).astype(kinds.get(name, "float32"))
        for name, shape in returned_shapes(manifest, task.returns).items()
    }
    if CLASS_COUNTS in found:
        found[CLASS_COUNTS] = np.ones_like(found[CLASS_COUNTS])
    return found


def honest(task: Task, values: dict[str, np.ndarray]) -> tuple[Stats, dict[str, np.ndarray]]:
    """An answer that nobody has anything against."""
    return STATS, values


class AnyFleet:
    """Stands where the device channel stands; every device answers at once. `answers`: of those who are not honest."""

    def __init__(self, reports: Mapping[str, Report], blobs: BlobStore, answers: Mapping[str, Answer]) -> None:
        self._blobs, self._answers = blobs, answers
        self._events: list[Any] = [Heard(device, "boot", report) for device, report in reports.items()]

    def assign(self, device: str, boot: str, task: Task) -> None:
        """The device answers."""
        answer: Answer = self._answers.get(device, honest)
        said = answer(task, wanted_tensors(task, self._blobs))
        if isinstance(said, tuple):
            stats, values = said
            ref = None
            if values:
                data = tensors.save(values)
                self._blobs.put_bytes(data)
                ref = make_ref(data, inline=False)
            said = Update(task.task, task.round, stats, ref)
        self._events.append(Heard(device, boot, said))

    def poll(self, timeout_s: float) -> list[Any]:
        """All that was said since."""
        del timeout_s
        said, self._events = self._events, []
        return said

    def ask(self, device: str, ask: Any) -> None:
        """Nobody hides counts here."""

    def edge_of(self, device: str) -> str | None:
        """No edges here."""
        del device
        return None

    def challenge(self, device: str, tell: Sequence[str] = (), *, profile: bool = False) -> None:
        """Nobody claims another's id."""

    def withdraw(self, task: str) -> None:
        """Tasks are answered at once."""

    def acknowledge(self, device: str, task: str, *, problem: str = "") -> None:
        """Nobody listens."""

    def dismiss(self, device: str, dismissal: Any) -> None:
        """Nobody listens."""

    def pull(self, device: str, ref: Any) -> None:
        """Tensors lie in the server's own store before they are announced."""

    def recall(self, edge: str, task: str) -> None:
        """No edges here."""

    def recall_all(self, device: str) -> None:
        """No edges here."""


def conduct_any(
    config: RunConfig,
    text: str,
    *,
    reports: Mapping[str, Report],
    answers: Mapping[str, Answer],
    public: PublicData | None = None,
    observer: events.Observer = events.ignore,
) -> runs.RunOutcome:
    """One life of a server with such a fleet."""
    return runs.conduct(
        config,
        text,
        runs.FleetAccess(
            lambda blobs: AnyFleet(reports, blobs, answers), observer, sync=False, dismiss=False, public=public
        ),
    )


def spoilt(values: dict[str, np.ndarray], kind: str, size: float) -> dict[str, np.ndarray]:
    """Tensors of the right names and types with other numbers: all of them, those of one tensor, or one entry."""
    rng = np.random.default_rng(3)
    changed = {}
    for place, (name, value) in enumerate(sorted(values.items())):
        if name == CLASS_COUNTS:
            changed[name] = np.full_like(value, abs(size))
        elif not np.issubdtype(value.dtype, np.floating) or (kind == "tensor" and place):
            changed[name] = value
        elif kind == "entry":
            changed[name] = value.copy()
            changed[name].reshape(-1)[:1] = size
        elif kind == "noise":
            with np.errstate(over="ignore"):
                changed[name] = (size * rng.standard_normal(value.shape)).astype(value.dtype)
        else:
            changed[name] = np.full_like(value, size)
    return changed


def strange(values: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """Tensors that are not what was asked for."""
    if kind == "none":
        return {}
    first = sorted(values)[:1]
    if kind == "one less":
        return {name: value for name, value in values.items() if name not in first}
    if kind == "one more":
        return {**values, "another": np.zeros(3, np.float32)}
    if kind == "doubles":
        return {name: value.astype(np.float64) for name, value in values.items()}
    if kind == "flat":
        return {name: value.reshape(-1) for name, value in values.items()}
    return {name: np.full_like(value, np.nan) if value.dtype.kind == "f" else value for name, value in values.items()}


def share_artifacts(folder: Path, kept: Path) -> None:
    """Let the run named `run` in a folder find the graphs that earlier ones built."""
    kept.mkdir(exist_ok=True)
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "artifacts").symlink_to(kept, target_is_directory=True)
