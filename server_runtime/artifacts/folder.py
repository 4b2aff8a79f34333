"""An artifact as a folder: manifest.json, train.onnx, eval.onnx."""

from pathlib import Path

import msgspec

from fedwright.protocol.artifact import Artifact, Manifest, check_files
from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.support.unreadable import UNREADABLE

MANIFEST, TRAIN, EVAL = "manifest.json", "train.onnx", "eval.onnx"


def write_folder(artifact: Artifact, folder: Path) -> None:
    """Write the three files, making the folder if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRAIN).write_bytes(artifact.train)
    (folder / EVAL).write_bytes(artifact.eval)
    text = msgspec.json.format(msgspec.json.encode(artifact.manifest, order="deterministic"), indent=2)
    (folder / MANIFEST).write_bytes(text + b"\n")


def read_folder(folder: Path) -> Artifact:
    """Read the three files and check their hashes."""
    try:
        data = {name: (folder / name).read_bytes() for name in (MANIFEST, TRAIN, EVAL)}
    except OSError as err:
        raise BadArtifact(f"{folder} is no artifact: {err}; make one with `fedwright artifact build`") from err
    try:
        manifest = msgspec.json.decode(data[MANIFEST], type=Manifest)
    except UNREADABLE as err:
        raise BadArtifact(f"{folder / MANIFEST} cannot be read: {err}; build the artifact again") from err
    artifact = Artifact(manifest, data[TRAIN], data[EVAL])
    check_files(artifact)
    return artifact
