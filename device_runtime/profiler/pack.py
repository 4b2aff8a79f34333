"""The file of probes: small training graphs that the package carries, so that a device needs nothing else."""

from importlib import resources
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fedwright.protocol.artifact import Artifact, check_files
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.protocol.support.zstd import ZstdError, compress, content_bytes, decompress

PROBES = resources.files("fedwright.device_runtime.profiler").joinpath("probes.bin")
MAX_BYTES = 64 * 1024 * 1024


class Probe(Struct, frozen=True):
    """A training graph and the batch sizes at which to time it."""

    name: str
    batches: list[Annotated[int, Meta(ge=1)]]
    artifact: Artifact


def pack_probes(probes: list[Probe]) -> bytes:
    """The file's content; equal probes give equal bytes."""
    data = msgspec.msgpack.Encoder(order="deterministic").encode(probes)
    return compress(data, 19)


def read_probes(data: bytes) -> list[Probe]:
    """The probes in a file's content."""
    try:
        raw = decompress(data, size_bytes=min(MAX_BYTES, content_bytes(data) or 0))
        probes = msgspec.msgpack.decode(raw, type=list[Probe])
    except (ZstdError, *UNREADABLE) as err:
        raise BadArtifact(f"the probes of this installation cannot be read: {err}; install fedwright again") from err
    for probe in probes:
        check_files(probe.artifact)
    return probes


def load_probes() -> list[Probe]:
    """The probes of this installation."""
    return read_probes(PROBES.read_bytes())
