"""How fast each device is: what it measured of itself, refined by the times of the tasks it did."""

import logging

from fedwright.protocol.artifact import Manifest
from fedwright.protocol.errors import BadArtifact, BadMessage
from fedwright.protocol.messages import Report, Stats
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.predictor import Prediction, Profile, Refinement, predict_step, profile_from_json

log = logging.getLogger(__name__)

# For devices that never measured themselves: 2 us a call, 10 GFLOP/s, a nanosecond an element. Only how these compare
# matters, because the first task that a device does tells how fast it really is.
_USUAL = dict(zip(FEATURES, (2e-6, 1e-10, 1e-9, 0.0, 0.0, 0.0, 0.0), strict=True))

# Predictions that are kept: of all widths and batches of a round, not of every one ever used.
KEPT_USUAL = 256


class Speeds:
    """Profiles by device; one without a profile has a prediction once it has done a task."""

    def __init__(self) -> None:
        self._profiles: dict[str, Profile] = {}
        self._refined: dict[str, Refinement] = {}
        self._asked: set[str] = set()
        # By graph and batch, of devices that never measured themselves; manifests are kept, so that ids stay theirs.
        self._usual: dict[tuple[int, int, int | None], tuple[Manifest, Prediction]] = {}

    def ask(self, device: str) -> None:
        """A device is asked to measure itself anew."""
        self._asked.add(device)

    def hear(self, device: str, report: Report) -> bool:
        """Take a report; whether it has the new profile that was asked for. One that cannot be read counts as none."""
        if report.profile is None:
            return False
        try:
            profile = profile_from_json(report.profile)
        except BadMessage as err:
            log.warning("device %s: %s", device, err)
            return False
        if self._profiles.get(device) == profile:
            return False
        self._profiles[device] = profile
        self._refined[device] = Refinement()
        # However often a device says that it measured itself, an order is answered once.
        was_asked = device in self._asked
        self._asked.discard(device)
        return was_asked

    def take(self, device: str, manifest: Manifest, stats: Stats, *, batch: int, part: int | None = None) -> None:
        """Learn from the time of a task that was done."""
        if not manifest.work or stats.steps == 0:
            return
        try:
            alone = self._alone(device, manifest, batch, part)
        except BadArtifact:
            return
        self._refined.setdefault(device, Refinement()).note(stats.train_s / stats.steps, alone.step_s)

    def predict(self, device: str, manifest: Manifest, *, batch: int, part: int | None = None) -> Prediction | None:
        """What a step will take on this device; None when it neither measured itself nor did a task."""
        refined = self._refined.get(device)
        if refined is None or not manifest.work:
            return None
        alone = self._alone(device, manifest, batch, part)
        ratio = refined.ratio
        return Prediction(alone.step_s * ratio, alone.low_s * ratio, alone.high_s * ratio, alone.unknown)

    def bytes_per_s(self, device: str) -> float | None:
        """How fast its link is each way, as it measured."""
        profile = self._profiles.get(device)
        return None if profile is None else profile.link.get("bytes_per_s")

    def _alone(self, device: str, manifest: Manifest, batch: int, part: int | None) -> Prediction:
        """By the profile alone, or by the usual costs of operators."""
        profile = self._profiles.get(device)
        if profile is not None:
            return predict_step(profile, manifest, batch=batch, part=part)
        key = (id(manifest), batch, part)
        if key not in self._usual:
            row = list(_USUAL.values())
            usual = Profile("unknown", "unknown", 1, kinds=dict.fromkeys([*manifest.work, *manifest.update_work], row))
            if len(self._usual) >= KEPT_USUAL:
                self._usual.clear()
            self._usual[key] = (manifest, predict_step(usual, manifest, batch=batch, part=part))
        return self._usual[key][1]
