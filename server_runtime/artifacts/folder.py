"""An artifact as a folder: manifest.json and its graphs."""

from pathlib import Path

import msgspec

from fedwright.protocol.artifact import EVAL, TRAIN, UPDATE, Artifact, Manifest, check_files
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.support.unreadable import UNREADABLE

MANIFEST = "manifest.json"


def write_folder(artifact: Artifact, folder: Path) -> None:
    """Write the files, making the folder if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, graph in artifact.graphs.items():
        (folder / name).write_bytes(graph)
    text = msgspec.json.format(msgspec.json.encode(artifact.manifest, order="deterministic"), indent=2)
    (folder / MANIFEST).write_bytes(text + b"\n")


def read_folder(folder: Path) -> Artifact:
    """Read the files and check their hashes."""
    try:
        data = {name: (folder / name).read_bytes() for name in (MANIFEST, TRAIN, EVAL)}
        update = (folder / UPDATE).read_bytes() if (folder / UPDATE).exists() else b""
    except OSError as err:
        raise BadArtifact(f"{folder} is no artifact: {err}; make one with `fedwright artifact build`") from err
    try:
        manifest = msgspec.json.decode(data[MANIFEST], type=Manifest)
    except UNREADABLE as err:
        raise BadArtifact(f"{folder / MANIFEST} cannot be read: {err}; build the artifact again") from err
    artifact = Artifact(manifest, data[TRAIN], data[EVAL], update)
    check_files(artifact)
    return artifact
