"""Memory for chunks on their way through: used again and again, because fresh pages cost more than a copy."""

from collections import deque

SPARE_BYTES = 8 * 1024 * 1024
# Messages of nearly one size share buffers.
STEP_BYTES = 64 * 1024


class Buffers:
    """Buffers that are given out again when no view of them is left; made for use in order, as a queue does."""

    def __init__(self, spare_bytes: int = SPARE_BYTES) -> None:
        self._spare_bytes = spare_bytes
        # The one that was given out first is first.
        self._kept: deque[bytearray] = deque()
        self.kept_bytes = 0

    def take(self, size_bytes: int) -> memoryview:
        """A view of so many bytes, whatever they hold."""
        wanted_bytes = -(-size_bytes // STEP_BYTES) * STEP_BYTES
        if self._kept and _is_free(self._kept[0]):
            oldest = self._kept.popleft()
            if len(oldest) == wanted_bytes:
                self._kept.append(oldest)
                return memoryview(oldest)[:size_bytes]
            self.kept_bytes -= len(oldest)
        fresh = bytearray(wanted_bytes)
        self._kept.append(fresh)
        self.kept_bytes += wanted_bytes
        while self.kept_bytes > self._spare_bytes:
            self.kept_bytes -= len(self._kept.popleft())
        return memoryview(fresh)[:size_bytes]


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of a buffer is left: only then may its size change."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
