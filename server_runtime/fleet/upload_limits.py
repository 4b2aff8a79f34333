"""How large the blob of an update can be; a larger one is not fetched at all."""

import math

from fedwright.protocol.artifact import Manifest, returned_shapes
from fedwright.protocol.errors import BadUpdate
from fedwright.protocol.messages import BlobRef, Returns

# Every form of an entry, with its index, is shorter than two float32.
MOST_ENTRY_BYTES = 8
# Names, shapes and scales.
HEADER_BYTES = 1_000_000


def most_bytes(manifest: Manifest, returns: Returns) -> int:
    """More than any update of a task that returns this can need."""
    shapes = returned_shapes(manifest, returns)
    return HEADER_BYTES + MOST_ENTRY_BYTES * sum(math.prod(shape) for shape in shapes.values())


def size_problem(ref: BlobRef, manifest: Manifest, returns: Returns) -> str | None:
    """Why a blob cannot be what was asked for: it is too large, or cut into another number of pieces than it says."""
    limit, pieces = most_bytes(manifest, returns), -(-ref.size_bytes // ref.chunk_bytes)
    if ref.size_bytes > limit:
        return (
            f"its blob of {ref.size_bytes} bytes is over the limit of {limit} for what the task returns; "
            f"send only the tensors that were asked for"
        )
    if len(ref.chunks) != pieces:
        return f"its blob of {ref.size_bytes} bytes must have {pieces} chunks, not {len(ref.chunks)}"
    return None


def check_size(ref: BlobRef, manifest: Manifest, returns: Returns) -> None:
    """Raise BadUpdate for a blob that cannot be what was asked for."""
    problem = size_problem(ref, manifest, returns)
    if problem is not None:
        raise BadUpdate(problem)
