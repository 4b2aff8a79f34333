"""How large the models are that devices get, counted in the blobs that they fetch."""

from pathlib import Path

from fedwright.protocol import deltas
from fedwright.protocol.blobs import BlobStore
from fedwright.server_runtime.rounds import events


class SentModels:
    """Observes a run; `most` is the largest number of entries that each device was ever sent as weights.

    Of a masked model only the entries that travel count. After a resume, rounds that were over before do not.
    """

    def __init__(self, blobs: Path) -> None:
        self._blobs = blobs
        self.most: dict[str, int] = {}

    def __call__(self, event: events.Event) -> None:
        """Count what a stage sends, before anybody may forget it."""
        if not isinstance(event, events.StagePlanned) or event.evaluation:
            return
        store = BlobStore(self._blobs, sync=False)
        counted: dict[str, int] = {}
        for device, _, sha256 in event.sent:
            if sha256 not in counted:
                counted[sha256] = entries_of(store.path(sha256))
            self.most[device] = max(self.most.get(device, 0), counted[sha256])


def entries_of(blob: Path) -> int:
    """How many numbers a blob of weights holds."""
    values, masks = deltas.load(blob)
    return sum(int(masks[name].sum()) if name in masks else value.size for name, value in values.items())
