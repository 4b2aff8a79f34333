"""The artifact: a training graph, an evaluation graph and the manifest that names every input and output.

An artifact depends only on the structure (model, sizes, trainable set, objective, optimizer), never on
weights, so it is built once, named by its content and cached on both sides. As a folder it is
`manifest.json`, `train.onnx`, `eval.onnx`, and `update.onnx` where a step is taken in parts; on the wire it is
one msgpack record of the same.
"""

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fedwright.protocol.errors import BadArtifact
from fedwright.protocol.messages import Returns
from fedwright.protocol.support.unreadable import UNREADABLE

FORMAT = 1
MAX_OPSET = 18
MAX_IR = 10
MAX_ARTIFACT_BYTES = 256 * 1024 * 1024
# Where a frozen tensor in a graph says its data is: nowhere on disk, the session is given it by name.
SUPPLIED = "supplied-by-the-session"
# In the names of nodes that make a value once more, which a session must not merge with the first one.
AGAIN = "again"
# What a device answers when it is asked for its logits on public rows.
PUBLIC_LOGITS = "public_logits"
# The batch input of a model that reads a graph: pairs of places in the batch.
EDGES = "edges"

TRAIN: Literal["train.onnx"] = "train.onnx"
EVAL: Literal["eval.onnx"] = "eval.onnx"
UPDATE: Literal["update.onnx"] = "update.onnx"
GraphFile = Literal["train.onnx", "eval.onnx", "update.onnx"]
# The input of train.onnx by which a part's gradient counts in its batch.
SHARE = "share"
# What the names of sums of gradients begin with; a parameter's follows.
SUM = "sum/"

Name = Annotated[str, Meta(min_length=1, max_length=400)]
Dims = Annotated[list[Annotated[int, Meta(ge=-1, le=2**31)]], Meta(max_length=8)]
Dtype = Literal["float32", "int64", "int32", "bool", "int8", "uint8"]


class TensorSpec(Struct, frozen=True, omit_defaults=True):
    """One named tensor; -1 stands for the batch dimension (or any free size of a side input)."""

    name: Name
    shape: Dims
    dtype: Dtype = "float32"


class Slot(Struct, frozen=True, omit_defaults=True):
    """State that one step reads under `name` and writes under `output`.

    trainable: follows the gradient and goes back to the server. buffer: follows the data (running
    statistics) and goes back too. optimizer: starts at zero and stays on the device. Where a step is taken in parts,
    trainable and optimizer slots are written over what was read.
    """

    name: Name
    output: Name
    shape: Dims
    role: Literal["trainable", "buffer", "optimizer"]
    dtype: Dtype = "float32"


class FileInfo(Struct, frozen=True):
    """Hash and size of one graph file."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_ARTIFACT_BYTES)]


class Manifest(Struct, frozen=True):
    """Everything a trainer must know to run the graphs.

    train.onnx: inputs = batch + slots + sides + frozen (external initializers) + scalars + noise;
    outputs = loss first, then metrics, then every slot's output, then gradients.
    With update.onnx a batch may come in parts: train.onnx reads no optimizer slot but the `sums`, to which it adds
    `share` (float32, of the batch's samples) times a part's gradient, and writes these and the buffers alone;
    update.onnx reads and writes optimizer slots and the trainable ones that have a sum, and takes the learning rate.
    eval.onnx: inputs = the batch inputs named in `eval_batch` + the slots named in `eval_slots`
    + frozen; outputs = logits, embedding.
    scalars: `learning_rate` (float32) always; `seed` (int64, a new value each step) when the graph draws
    random numbers.
    """

    format: int
    opset: Annotated[int, Meta(ge=1, le=MAX_OPSET)]
    ir_version: Annotated[int, Meta(ge=1, le=MAX_IR)]
    files: dict[GraphFile, FileInfo]
    batch: list[TensorSpec]
    slots: list[Slot]
    scalars: list[TensorSpec]
    loss: Name
    metrics: list[Name]
    eval_batch: list[Name]
    eval_slots: list[Name]
    logits: Name
    embedding: Name
    classes: int
    embedding_size: Annotated[int, Meta(ge=0)] = 0
    sides: list[TensorSpec] = []
    frozen: list[TensorSpec] = []
    # Inputs `noise/<parameter>` that the device draws anew for each step (protocol/private_graph.py).
    noise: list[TensorSpec] = []
    # Outputs `gradient/<parameter>`, one for each noise: the device runs each sample by itself, clips, and gives their
    # noisy sum as noise/<parameter>. Empty: the graph clips.
    gradients: list[Name] = []
    # Estimated bytes of one step beyond the runtime itself: fixed (parameters, state, frozen) and per sample.
    fixed_bytes: Annotated[int, Meta(ge=0)] = 0
    sample_bytes: Annotated[int, Meta(ge=0)] = 0
    description: Annotated[str, Meta(max_length=2000)] = ""
    # What a step computes, for `predictor.predict`; empty = nobody counted.
    work: dict[Annotated[str, Meta(max_length=100)], list[Annotated[float, Meta(ge=0)]]] = {}
    # Multiply-accumulates of one prediction; 0 = nobody counted.
    macs: Annotated[int, Meta(ge=0)] = 0
    # What train.onnx is for: the stock onnxruntime, or onnxruntime-training (protocol/classic_artifact.py).
    backend: Literal["portable", "classic"] = "portable"
    # What the model is for (protocol/goals.py).
    goal: Annotated[str, Meta(max_length=100)] = "classify"
    # Optimizer slots that gradients of a batch's parts are added to; empty = a step is one run.
    sums: list[Name] = []
    # FEATURES of update.onnx by kind of operator, which no batch changes.
    update_work: dict[Annotated[str, Meta(max_length=100)], list[Annotated[float, Meta(ge=0)]]] = {}


def train_reads(manifest: Manifest) -> list[Slot]:
    """The slots that train.onnx reads."""
    if not manifest.sums:
        return manifest.slots
    return [slot for slot in manifest.slots if slot.role != "optimizer" or slot.name in manifest.sums]


def train_writes(manifest: Manifest) -> list[Slot]:
    """The slots that train.onnx writes."""
    if not manifest.sums:
        return manifest.slots
    return [slot for slot in manifest.slots if slot.role == "buffer" or slot.name in manifest.sums]


def update_writes(manifest: Manifest) -> list[Slot]:
    """The slots that update.onnx reads, and writes in their place."""
    summed = {name.removeprefix(SUM) for name in manifest.sums}
    return [slot for slot in manifest.slots if summed and (slot.role == "optimizer" or slot.name in summed)]


# Names under which class means and the numbers of samples behind them travel.
CLASS_MEANS, CLASS_COUNTS = BY_CLASS = ("prototypes", "prototype_counts")
# What a device measured, as against what it learnt: never rounded, thinned out, clipped or owed.
MEASURED = (*BY_CLASS, PUBLIC_LOGITS)


def returned_shapes(manifest: Manifest, returns: Returns) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a device sends back."""
    shapes: dict[str, tuple[int, ...]] = {}
    if returns.weights != "none":
        slots = [slot for slot in manifest.slots if slot.role != "optimizer" and slot.name not in returns.personal]
        shapes = {slot.name: tuple(slot.shape) for slot in slots}
    if returns.class_means:
        shapes[CLASS_MEANS] = (manifest.classes, manifest.embedding_size)
        shapes[CLASS_COUNTS] = (manifest.classes,)
    if returns.logits:
        shapes[PUBLIC_LOGITS] = (returns.logits, manifest.classes)
    return shapes


class Artifact(Struct, frozen=True, omit_defaults=True):
    """A manifest with its graph files; update: empty where a step is one run."""

    manifest: Manifest
    train: Annotated[bytes, Meta(max_length=MAX_ARTIFACT_BYTES)]
    eval: Annotated[bytes, Meta(max_length=MAX_ARTIFACT_BYTES)]
    update: Annotated[bytes, Meta(max_length=MAX_ARTIFACT_BYTES)] = b""

    @property
    def graphs(self) -> dict[GraphFile, bytes]:
        """The graphs by the names of their files."""
        graphs: dict[GraphFile, bytes] = {TRAIN: self.train, EVAL: self.eval}
        return graphs | {UPDATE: self.update} if self.update else graphs


_decoder = msgspec.msgpack.Decoder(Artifact)
_read_manifest = msgspec.msgpack.Decoder(Manifest).decode
_encoder = msgspec.msgpack.Encoder(order="deterministic")


def file_info(data: bytes) -> FileInfo:
    """The manifest entry of a file."""
    return FileInfo(hashlib.sha256(data).hexdigest(), len(data))


def pack(artifact: Artifact) -> bytes:
    """The artifact as one blob; equal artifacts give equal bytes."""
    manifest = as_read(artifact.manifest)
    # Counts are whole numbers, which take a third of the bytes as such.
    work = {kind: [_whole(number) for number in row] for kind, row in manifest.work.items()}
    manifest = msgspec.structs.replace(manifest, work=work)
    return _encoder.encode(msgspec.structs.replace(artifact, manifest=manifest))


def with_files(artifact: Artifact) -> Artifact:
    """The artifact with its files named in the manifest, which then is as it is when it was read."""
    files = {name: file_info(data) for name, data in artifact.graphs.items()}
    manifest = as_read(msgspec.structs.replace(artifact.manifest, files=files))
    return msgspec.structs.replace(artifact, manifest=manifest)


def as_read(manifest: Manifest) -> Manifest:
    """The manifest as it is when it was read: a default is left out only where it is the very object."""
    return _read_manifest(_encoder.encode(manifest))


def _whole(number: float) -> float:
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def unpack(blob: bytes) -> Artifact:
    """Decode a blob and check format and file hashes (operators are checked by the device before it runs them)."""
    if len(blob) > MAX_ARTIFACT_BYTES:
        raise BadArtifact(f"artifact of {len(blob)} bytes is over the limit of {MAX_ARTIFACT_BYTES}")
    try:
        artifact = _decoder.decode(blob)
    except UNREADABLE as err:
        raise BadArtifact(f"artifact cannot be decoded: {err}") from err
    check_files(artifact)
    return artifact


def check_files(artifact: Artifact) -> None:
    """Raise BadArtifact unless the format is known and all files have the hashes the manifest says."""
    if artifact.manifest.format != FORMAT:
        raise BadArtifact(
            f"artifact has format {artifact.manifest.format} but this release reads {FORMAT}; "
            f"install the same fedwright release on both sides"
        )
    graphs, infos = artifact.graphs, artifact.manifest.files
    for name in sorted({*graphs, *infos}):
        if name not in graphs or infos.get(name) != file_info(graphs[name]):
            raise BadArtifact(f"{name} does not have the hash and size its manifest says; fetch the artifact again")
