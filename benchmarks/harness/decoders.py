"""Every decoder of bytes that come from outside: valid examples of each, and which errors it may answer others with."""

import json
import random
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedwright.benchmarks.harness.message_samples import samples
from fedwright.device_runtime.enrol import request_for
from fedwright.device_runtime.store.checkpoint import Checkpoint
from fedwright.device_runtime.store.journal import JournalEntry, read_entry
from fedwright.device_runtime.train.check import check_artifact
from fedwright.protocol import artifact as artifacts
from fedwright.protocol import codec, deltas, predictor, tensors
from fedwright.protocol.artifact import Artifact
from fedwright.protocol.blobs import check_ref, make_ref
from fedwright.protocol.enrolment import EnrolmentRequest, read_record, read_token
from fedwright.protocol.errors import BadArtifact, BadBlob, BadMessage, ConfigError, FedwrightError, OverBudget
from fedwright.protocol.link.security import BundleInfo, read_bundle
from fedwright.protocol.messages import BlobRef, Message, Task
from fedwright.protocol.onnx_outline import scan
from fedwright.protocol.operator_costs import FEATURES
from fedwright.protocol.support.unreadable import UNREADABLE
from fedwright.protocol.tensor_header import metadata

SAMPLES = 40
SHAPES = {"w": (4, 3), "b": (3,), "n": (2,)}
ARTIFACT = "artifact"

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Decoder:
    """valid: makes examples. reader: makes what is called with bytes, given a folder to write to in which the artifact
    of the examples lies. errors: what that may raise, and nothing else.
    """

    valid: Callable[[random.Random], list[bytes]]
    reader: Callable[[Path], Read]
    errors: tuple[type[FedwrightError], ...] = ()


def _plain(read: Read) -> Callable[[Path], Read]:
    return lambda folder: read


def _messages(rng: random.Random) -> list[bytes]:
    kinds = msgspec.inspect.type_info(Message)
    assert isinstance(kinds, msgspec.inspect.UnionType)
    bodies = [body for kind in kinds.types for body in samples(kind.cls, rng, 8)]  # type: ignore[attr-defined]
    return [codec.encode(body, sender="a", boot="b") for body in bodies]


def _signed(rng: random.Random) -> list[bytes]:
    bodies = [body for kind in codec.MUST_BE_SIGNED for body in samples(kind, rng, 8)]
    return [codec.encode(body, sender="a", boot="b", sign=lambda data: bytes(64)) for body in bodies]


def _read_signed(data: bytes) -> object:
    return codec.decode(data, verify=lambda message, signature: signature == bytes(64))


def _tensors(rng: random.Random) -> dict[str, Any]:
    numbers = np.random.default_rng(rng.randrange(2**32))
    made: dict[str, Any] = {name: numbers.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    return made | {"n": np.arange(2)}


def _safetensors(rng: random.Random) -> list[bytes]:
    notes: tuple[dict[str, str], ...] = ({}, {"task": "t", "step": "3", "loss_first": "1.5"})
    return [tensors.save(_tensors(rng), rng.choice(notes)) for _ in range(SAMPLES)]


def _read_tensors(data: bytes) -> object:
    return metadata(data), tensors.load(data)


def _deltas(rng: random.Random) -> list[bytes]:
    large = {"w": np.zeros((40, 30), np.float32), "b": np.ones(900, np.float32)}
    kinds: list[Any] = [{"codec": name} for name in ("float32", "bf16", "int8", "int4")]
    kinds += [{"codec": name, "keep": keep} for name in ("float32", "int8", "int4") for keep in (0.3, 0.05)]
    return [deltas.encode(given, **kind) for kind in kinds for given in (_tensors(rng), large)]


def _read_update(data: bytes) -> object:
    return deltas.decode(data, SHAPES)


@cache
def example_artifact() -> Artifact:
    """A real one: a small perceptron with momentum."""
    from fedwright.server_runtime import zoo
    from fedwright.server_runtime.artifacts.builder import build
    from fedwright.server_runtime.spec import ModelSpec, Optimizer, Structure

    spec = ModelSpec("mlp", (2,), 2)
    return build(Structure(spec, optimizer=Optimizer(momentum=0.9)), zoo.create(spec, seed=0))


def _artifacts(rng: random.Random) -> list[bytes]:
    del rng
    return [artifacts.pack(example_artifact())]


def _graphs(rng: random.Random) -> list[bytes]:
    del rng
    return [example_artifact().train, example_artifact().eval]


def _graph_check(folder: Path) -> Read:
    """The whole check of a device, with a manifest that belongs to the graph."""
    whole = artifacts.unpack((folder / ARTIFACT).read_bytes())

    def read(data: bytes) -> None:
        files = {**whole.manifest.files, "train.onnx": artifacts.file_info(data)}
        manifest = msgspec.structs.replace(whole.manifest, files=files)
        check_artifact(Artifact(manifest, data, whole.eval), batch=8, free_bytes=10**9)

    return read


def _manifests(rng: random.Random) -> list[bytes]:
    del rng
    return [msgspec.json.encode(example_artifact().manifest)]


def _manifest_check(folder: Path) -> Read:
    """An artifact of two honest graphs under a manifest that is not: it is packed again, then read and checked."""
    whole = artifacts.unpack((folder / ARTIFACT).read_bytes())

    def read(data: bytes) -> None:
        try:
            manifest = msgspec.json.decode(data, type=artifacts.Manifest, strict=False)
            packed = artifacts.pack(Artifact(manifest, whole.train, whole.eval))
        except (*UNREADABLE, OverflowError) as err:
            # Not what is tried here: the decoder `artifact` meets such bytes.
            raise BadArtifact("no manifest") from err
        check_artifact(artifacts.unpack(packed), batch=8, free_bytes=10**9)

    return read


def _refs(rng: random.Random) -> list[bytes]:
    refs = samples(BlobRef, rng, SAMPLES)
    refs += [make_ref(rng.randbytes(5000), chunk_bytes=1024), make_ref(rng.randbytes(90))]
    return [msgspec.msgpack.encode(ref) for ref in refs]


def _read_ref(data: bytes) -> None:
    try:
        ref = msgspec.msgpack.decode(data, type=BlobRef)
    except UNREADABLE as err:
        raise BadBlob("no reference") from err
    check_ref(ref)


def _profiles(rng: random.Random) -> list[bytes]:
    row = [rng.random() for _ in FEATURES]
    profile = predictor.Profile("board", "onnxruntime 1.20", 2, kinds={"Conv": row, "Gemm": row}, link={"up": 1.0})
    return [profile.to_json()]


def _bundles(rng: random.Random) -> list[bytes]:
    return [msgspec.json.encode(info) for info in samples(BundleInfo, rng, SAMPLES)]


def _bundle(folder: Path) -> Read:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (folder / name).touch()

    def read(data: bytes) -> None:
        (folder / "bundle.json").write_bytes(data)
        read_bundle(folder)

    return read


def _journals(rng: random.Random) -> list[bytes]:
    tasks = samples(Task, rng, SAMPLES)
    return [msgspec.msgpack.encode({"entry": JournalEntry(task, attempts=1), "finished": ["t"]}) for task in tasks]


def _journal(folder: Path) -> Read:
    """A journal that cannot be read is put aside, and the agent begins without one."""

    def read(data: bytes) -> None:
        (folder / "journal").write_bytes(data)
        read_entry(folder)

    return read


def _checkpoint(folder: Path) -> Read:
    """A checkpoint that cannot be read is as none."""

    def read(data: bytes) -> None:
        (folder / "checkpoint").write_bytes(data)
        kept = Checkpoint(folder / "checkpoint")
        kept.step("t")
        kept.load("t")

    return read


def _configs(rng: random.Random) -> list[bytes]:
    del rng
    from fedwright.api.starter import starter_config
    from fedwright.server_runtime.methods.registry import METHODS

    texts = [starter_config(entry) for entry in METHODS.values()]
    # What stands behind a # is not read, so changes there are no examples.
    return [re.sub(r"(^|  +)#.*$", "", text, flags=re.MULTILINE).encode() for text in texts]


def _read_config(data: bytes) -> None:
    from fedwright.server_runtime.config import config_from_text

    try:
        text = data.decode()
    except UnicodeDecodeError as err:
        raise ConfigError("no text") from err
    config_from_text(text, where="run.toml")


def _orders(rng: random.Random) -> list[bytes]:
    given: list[dict[str, object]] = [{"kind": kind} for kind in ("pause", "resume", "end")]
    given += [{"kind": kind, "device": "pi-07"} for kind in ("take-out", "let-in", "profile")]
    given += [{"kind": "rounds", "rounds": 12}, {"kind": "sample-ratio", "sample_ratio": 0.5}]
    return [json.dumps({"id": rng.randbytes(6).hex(), **order, "by": "me"}).encode() for order in given]


def _read_order(data: bytes) -> None:
    """As the page takes one from a browser."""
    from fedwright.server_runtime.rounds.orders import make_order

    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE as err:
        raise ConfigError("no JSON") from err
    make_order(found)


def _enrolments(rng: random.Random) -> list[bytes]:
    del rng
    with tempfile.TemporaryDirectory() as place:
        asked = [request_for(device, Path(place) / device, token=f"{device}.secret.mark") for device in ("a", "pi-07")]
    return [msgspec.json.encode(request) for request in asked]


def _read_enrolment(data: bytes) -> None:
    """As the service that hands out certificates reads it, but for whether the token is known."""
    from fedwright.server_runtime.fleet.tokens import requested_key

    request = read_record(data, EnrolmentRequest, what="the request")
    read_token(request.token)
    requested_key(request)


def _audits(rng: random.Random) -> list[bytes]:
    del rng
    from fedwright.server_runtime.rounds.audit import AUDIT, AuditLog

    with tempfile.TemporaryDirectory() as place:
        log = AuditLog(Path(place) / AUDIT)
        log.append("joined", device="a", samples=3)
        log.append("sent", device="a", round=1)
        log.close()
        return [(Path(place) / AUDIT).read_bytes()]


def _audit(folder: Path) -> Read:
    from fedwright.server_runtime.rounds.audit import AUDIT, check_audit, read_audit

    def read(data: bytes) -> None:
        (folder / AUDIT).write_bytes(data)
        check_audit(folder)
        list(read_audit(folder))

    return read


DECODERS = {
    "message": Decoder(_messages, _plain(codec.decode), (BadMessage,)),
    "signed message": Decoder(_signed, _plain(_read_signed), (BadMessage,)),
    "blob reference": Decoder(_refs, _plain(_read_ref), (BadBlob,)),
    "tensors": Decoder(_safetensors, _plain(_read_tensors), (BadBlob,)),
    "weights": Decoder(_deltas, _plain(deltas.load), (BadBlob,)),
    "update": Decoder(_deltas, _plain(_read_update), (BadBlob,)),
    "artifact": Decoder(_artifacts, _plain(artifacts.unpack), (BadArtifact,)),
    "manifest": Decoder(_manifests, _manifest_check, (BadArtifact, OverBudget)),
    "graph": Decoder(_graphs, _plain(lambda data: scan(data, what="graph")), (BadArtifact,)),
    "graph check": Decoder(_graphs, _graph_check, (BadArtifact, OverBudget)),
    "profile": Decoder(_profiles, _plain(predictor.profile_from_json), (BadMessage,)),
    "bundle": Decoder(_bundles, _bundle, (ConfigError,)),
    "journal": Decoder(_journals, _journal),
    "checkpoint": Decoder(_safetensors, _checkpoint),
    "run config": Decoder(_configs, _plain(_read_config), (ConfigError,)),
    "order": Decoder(_orders, _plain(_read_order), (ConfigError,)),
    "enrolment request": Decoder(_enrolments, _plain(_read_enrolment), (ConfigError,)),
    "audit log": Decoder(_audits, _audit),
}
