"""Updates whose tensors are still on their way to the server."""

from fedwright.protocol.messages import Update


class ArrivingUpdates:
    """Of each task the update that was announced last: who announces one after the other gains no room by it."""

    def __init__(self) -> None:
        self._by_blob: dict[str, dict[str, Update]] = {}
        self._blob_of: dict[str, str] = {}

    def add(self, update: Update, blob: str) -> None:
        """An update waits for this blob."""
        self.forget(update.task)
        self._by_blob.setdefault(blob, {})[update.task] = update
        self._blob_of[update.task] = blob

    def forget(self, task: str) -> None:
        """Nobody waits for a task's update any longer."""
        blob = self._blob_of.pop(task, None)
        if blob is not None:
            waiting = self._by_blob[blob]
            del waiting[task]
            if not waiting:
                del self._by_blob[blob]

    def take(self, blob: str) -> list[Update]:
        """Those that waited for this blob; it has come, or never will."""
        found = self._by_blob.pop(blob, {})
        for task in found:
            del self._blob_of[task]
        return list(found.values())

    def __len__(self) -> int:
        return len(self._blob_of)
