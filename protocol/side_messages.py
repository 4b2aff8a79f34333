"""Messages beside a task's own way: what edges and servers pass on, and what a device is at."""

from typing import Annotated

from msgspec import Meta, Struct

from fedwright.protocol.blob_ref import BlobRef
from fedwright.protocol.field_types import Count, Id


class Carried(Struct, tag="carried", frozen=True):
    """Edge ↔ server: an envelope from or to a device of this edge, byte for byte, so that signatures stay whole."""

    device: Id
    payload: Annotated[bytes, Meta(max_length=8 * 1024 * 1024)]


class Held(Struct, tag="held", frozen=True):
    """Edge → device: your answer to task `of` is durable here; the server's acknowledgement will follow."""

    of: Id


class Recall(Struct, tag="recall", frozen=True):
    """Server → edge: do not count on task `of` any longer; it is answered or goes another way."""

    of: Id


class Here(Struct, tag="here", frozen=True):
    """Edge → its devices, from time to time, and server → edge that reported: I am alive."""


class Status(Struct, tag="status", frozen=True):
    """Device → server that asked for it (Task.status_s): what it is at, for people who watch; nothing is decided by it.

    done, of: bytes of what is fetched or sent, steps of training. free_bytes: memory for tasks, limit_bytes: of how
    much. temperature_c: of the board, where it tells.
    """

    task: Id
    state: Annotated[str, Meta(max_length=20, pattern=r"^[a-z ]*\Z")]
    done: Count = 0
    of: Count = 0
    free_bytes: Count = 0
    limit_bytes: Count = 0
    temperature_c: Annotated[float, Meta(ge=-300, le=1000)] | None = None


class Shown(Struct, tag="shown", frozen=True):
    """Edge → server → the other edges of a stage: what they need of this edge's clusters, to link theirs with them.

    clusters: None from an edge that has none to show; the server says that for one that is away.
    """

    stage: Id
    edge: Id
    clusters: BlobRef | None = None
