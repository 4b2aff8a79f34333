"""How fast each device is: what it measured of itself, refined by the times of the tasks it did."""

import logging

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import BadArtifact, BadMessage
from fedwright.protocol.messages import Report, Stats
from fedwright.protocol.predictor import Prediction, Profile, Refinement, predict, profile_from_json

log = logging.getLogger(__name__)


class Speeds:
    """Profiles by device; a device without one has no prediction."""

    def __init__(self) -> None:
        self._profiles: dict[str, Profile] = {}
        self._refined: dict[str, Refinement] = {}

    def hear(self, device: str, report: Report) -> None:
        """Take a report; a profile that cannot be read counts as none."""
        if report.profile is None:
            return
        try:
            profile = profile_from_json(report.profile)
        except BadMessage as err:
            log.warning("device %s: %s", device, err)
            return
        if self._profiles.get(device) != profile:
            self._profiles[device] = profile
            self._refined[device] = Refinement()

    def take(self, device: str, manifest: Manifest, stats: Stats, *, batch: int) -> None:
        """Learn from the time of a task that was done."""
        profile = self._profiles.get(device)
        if profile is None or not manifest.work or stats.steps == 0:
            return
        try:
            alone = predict(profile, manifest.work, batch=batch)
        except BadArtifact:
            return
        self._refined[device].note(stats.train_s / stats.steps, alone.step_s)

    def predict(self, device: str, manifest: Manifest, *, batch: int) -> Prediction | None:
        """What a step will take on this device; None when it never measured itself."""
        profile = self._profiles.get(device)
        if profile is None or not manifest.work:
            return None
        alone = predict(profile, manifest.work, batch=batch)
        ratio = self._refined[device].ratio
        return Prediction(alone.step_s * ratio, alone.low_s * ratio, alone.high_s * ratio, alone.unknown)
