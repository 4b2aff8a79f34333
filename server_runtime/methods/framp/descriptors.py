"""What FRAMP's hypernetwork reads of each device: its descriptor, standardised over the fleet, perhaps learnt on."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import Report
from fedwright.server_runtime.blocks.scaling import Scaling
from fedwright.server_runtime.methods.base import Array, MethodState, Setting, Tensors
from fedwright.server_runtime.methods.framp.params import FrampParams
from fedwright.server_runtime.methods.shared import generated_models
from fedwright.server_runtime.seeds import number_of

MOVED, PULLS, SCALING = "moved/", "pulls/", "scaling/"
# Descriptors are compared anew when the fleet has grown by this share.
GROWTH = 0.25
# A descriptor that is learnt moves by at most this share of its length at a time.
STRIDE = 0.1


class Descriptors:
    """v_n of every device that was met, compared with all that were there when the fleet last grew by a share."""

    def __init__(self, params: FrampParams, setting: Setting) -> None:
        self._params, self._setting = params, setting
        self._known = generated_models.Descriptions(params.alike)
        self.scaling: Scaling | None = None
        # Those that made the scale.
        self.compared: list[str] = []
        # Standardised descriptors that were learnt on, and the gradients that wait for the next update.
        self._moved: dict[str, Array] = {}
        self._pulls: dict[str, Array] = {}

    def meet(self, reports: Mapping[str, Report]) -> None:
        """Take in the descriptors of new devices; one that is odd leaves its device out."""
        new = self._known.missing(reports)
        usual = self._usual_length([reports[device] for device in new])
        for device in new:
            try:
                self._known.note(device, self._described(device, reports[device], usual))
            except ConfigError as err:
                self._known.refuse(device, err)
        self._known.share(new)

    def _usual_length(self, new: Sequence[Report]) -> int:
        """How long descriptors are: those of devices that were met; else as most are, for a single one may be odd."""
        if self._known.rows:
            return len(next(iter(self._known.rows.values())))
        rows = [report.data.descriptor for report in new]
        lengths = Counter(len(row) for row in rows if row and np.isfinite(row).all())
        return lengths.most_common(1)[0][0] if lengths else 0

    def _described(self, device: str, report: Report, usual: int) -> Array:
        classes = self._setting.spec.classes
        if self._params.describe == "one_hot":
            row = np.zeros(self._params.devices, np.float32)
            row[number_of(device, self._setting.seed) % len(row)] = 1
            return row
        if self._params.describe == "classes":
            return generated_models.indicator_of(report, classes)
        if report.data.descriptor is None:
            raise ConfigError("it sent no descriptor of its data; update its agent or use describe = 'classes'")
        row = np.asarray(report.data.descriptor, np.float32)
        if len(row) != usual or not len(row) or not np.isfinite(row).all():
            raise ConfigError(f"its descriptor has {len(row)} numbers, not {usual} finite ones; update its agent")
        return row

    def __contains__(self, device: object) -> bool:
        """Whether a device has been met and described itself well."""
        return device in self._known.rows

    def compare(self) -> None:
        """Take the fleet as it is now as what descriptors are compared with; what was learnt of one goes along."""
        before = {device: self._scaled(device) for device in self._moved}
        self.scaling = Scaling.of(np.stack([self._known.rows[device] for device in self.known]))
        self.compared = self.known
        self._moved = {device: self._scaled(device) + row - before[device] for device, row in self._moved.items()}

    @property
    def outgrown(self) -> bool:
        """Whether so many came since descriptors were compared that they should be compared anew."""
        return self.scaling is None or len(self.known) >= (1 + GROWTH) * len(self.compared)

    @property
    def known(self) -> list[str]:
        """All devices that described themselves."""
        return sorted(self._known.rows)

    def rows(self, devices: Sequence[str]) -> Array:
        """What the hypernetwork reads for these devices, [n, l]."""
        return np.stack([self._row(device) for device in devices])

    def _row(self, device: str) -> Array:
        moved = self._moved.get(device)
        return self._scaled(device) if moved is None else moved

    def _scaled(self, device: str) -> Array:
        assert self.scaling is not None
        return self.scaling.apply(self._known.rows[device])

    def union(self) -> Array | None:
        """The mean descriptor [1, l], for a model of everyone's; None before there is any."""
        if self.scaling is None or not self._known.rows:
            return None
        mean: Array = self.rows(self.known).mean(axis=0, keepdims=True)
        return mean

    def pull(self, device: str, gradient: Array) -> None:
        """Remember where a descriptor should go."""
        self._pulls[device] = self._pulls.get(device, np.float32(0)) + gradient

    def advance(self, number: int) -> None:
        """After every few rounds: v ← v - β g, a step of limited length."""
        if not self._pulls or number % self._params.update_every:
            return
        for device, gradient in sorted(self._pulls.items()):
            row = self._row(device)
            step = self._params.server_rate * gradient
            longest = STRIDE * float(np.linalg.norm(row))
            length = float(np.linalg.norm(step))
            self._moved[device] = row - step * np.float32(min(1.0, longest / max(length, 1e-12)))
        self._pulls = {}

    def state(self) -> MethodState:
        """To be saved with the method."""
        tensors: Tensors = {}
        if self.scaling is not None:
            tensors |= {SCALING + name: value for name, value in vars(self.scaling).items()}
        for prefix, rows in ((MOVED, self._moved), (PULLS, self._pulls)):
            tensors |= {prefix + device: row for device, row in rows.items()}
        return self._known.state() | MethodState.of(tensors, compared=self.compared)

    def restore(self, state: MethodState) -> None:
        """Continue from a saved state."""
        self._known.restore(state)
        scaling, self._moved, self._pulls = (state.below(prefix) for prefix in (SCALING, MOVED, PULLS))
        self.scaling = Scaling(**scaling) if scaling else None
        self.compared = state.record("compared", list[str])
