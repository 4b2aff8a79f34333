"""A server that asks for its devices' data, against a real agent over a real broker: it gets refusals only."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import structs
from onnx import helper, numpy_helper

from fedwright.protocol import codec, tensors, topics
from fedwright.protocol.artifact import Artifact, Slot, file_info, pack
from fedwright.protocol.blobs import make_ref
from fedwright.protocol.link import Link, connect
from fedwright.protocol.link.broker import Broker
from fedwright.protocol.messages import Ack, BlobRef, Challenge, Recipe, Refusal, Report, Returns, Task, Update
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import build
from fedwright.server_runtime.artifacts.export import initial_weights
from fedwright.server_runtime.spec import ModelSpec, Structure
from helpers.data_files import save_points

pytestmark = [pytest.mark.broker, pytest.mark.slow]

BATCH, WIDTH, DEVICE = 8, 4, "pi"
MODULE = zoo.create(ModelSpec("mlp", (WIDTH,), 2), seed=0)
HONEST = build(Structure(ModelSpec("mlp", (WIDTH,), 2)), MODULE)
WEIGHTS = initial_weights(MODULE)
STOLEN = {"stolen": np.zeros((BATCH, WIDTH), np.float32)}
POLICY = """
returns = ["delta"]
least_batch = 4
"""


def stealing(nodes: list[onnx.NodeProto]) -> Artifact:
    """The honest artifact with a buffer that these nodes fill, as next/stolen."""
    model = onnx.load_from_string(HONEST.train)
    shape = [BATCH, WIDTH]
    model.graph.node.extend(nodes)
    model.graph.input.append(helper.make_tensor_value_info("stolen", onnx.TensorProto.FLOAT, shape))
    model.graph.output.append(helper.make_tensor_value_info("next/stolen", onnx.TensorProto.FLOAT, shape))
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape), "stolen_shape"))
    model.graph.initializer.append(numpy_helper.from_array(np.eye(BATCH, dtype=np.float32)[:, :1], "stolen_mask"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "stolen_axis"))
    train = model.SerializeToString()
    manifest = structs.replace(
        HONEST.manifest,
        files={**HONEST.manifest.files, "train.onnx": file_info(train)},
        slots=[*HONEST.manifest.slots, Slot("stolen", "next/stolen", shape, "buffer")],
    )
    return structs.replace(HONEST, manifest=manifest, train=train)


COPY = stealing([helper.make_node("Reshape", ["x", "stolen_shape"], ["next/stolen"])])
ONE_ROW = stealing(
    [
        helper.make_node("Mul", ["x", "stolen_mask"], ["stolen_row"]),
        helper.make_node("ReduceSum", ["stolen_row", "stolen_axis"], ["stolen_sum"], keepdims=1),
        helper.make_node("Expand", ["stolen_sum", "stolen_shape"], ["next/stolen"]),
    ]
)


class CuriousServer:
    """Hands out tasks of its own making and says what came back."""

    def __init__(self, url: str) -> None:
        self._link: Link = connect(url, client_id="server")
        self._link.subscribe(topics.up_all("default"))
        self._boot = ""

    def meet(self) -> None:
        """Wait until the device has reported."""
        self._say(Challenge())
        self._boot = self._wait(Report)[1]

    def ask(self, name: str, artifact: Artifact, recipe: dict[str, Any], returns: dict[str, Any]) -> Update | Refusal:
        """What the device answers to a task."""
        weights = {**WEIGHTS, **(STOLEN if artifact is not HONEST else {})}
        task = Task(
            task=name,
            boot=self._boot,
            run="r",
            round=1,
            artifact=_inline(pack(artifact)),
            weights=_inline(tensors.save(weights)),
            recipe=Recipe(**{"batch": BATCH, "learning_rate": 0.1, "seed": 1, "steps": 1, **recipe}),
            returns=Returns(**{"evaluate": False, **returns}),
            deadline_s=60.0,
        )
        self._say(task)
        answer: Update | Refusal = self._wait(Update, Refusal)[0]
        self._say(Ack(name))
        return answer

    def _say(self, body: Any) -> None:
        self._link.send(topics.down("default", DEVICE), codec.encode(body, sender="server", boot="s"))

    def _wait(self, *kinds: type) -> tuple[Any, str]:
        for _ in range(240):
            received = self._link.receive(0.5)
            envelope = None if received is None else codec.decode(received.payload)
            if envelope is not None and isinstance(envelope.body, kinds):
                return envelope.body, envelope.boot
        raise AssertionError(f"no {kinds[0].__name__} came")

    def close(self) -> None:
        """Leave."""
        self._link.close()


def _inline(data: bytes) -> BlobRef:
    return structs.replace(make_ref(data), inline=data)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CuriousServer]:
    """A server that has met an agent in a process of its own, whose owner has a policy."""
    folder = tmp_path_factory.mktemp("device")
    save_points(folder / "data.npz", seed=0)
    (folder / "policy.toml").write_text(POLICY)
    with Broker() as broker:
        words = ["device", "run", "--broker", broker.url, "--device", DEVICE, "--data", f"npz:{folder}/data.npz"]
        words += ["--policy", str(folder / "policy.toml"), "--state", str(folder / "state"), "--threads", "1"]
        with (folder / "log").open("wb") as log:
            agent = subprocess.Popen([sys.executable, "-m", "fedwright", *words], stdout=log, stderr=log)
        made = CuriousServer(broker.url)
        made.meet()
        yield made
        made.close()
        agent.terminate()
        agent.wait(30)


def test_a_buffer_that_copies_the_batch_is_refused_by_name(server: CuriousServer) -> None:
    answer = server.ask("copy", COPY, {}, {})

    assert isinstance(answer, Refusal)
    assert answer.reason == "bad_artifact"
    assert "output 'next/stolen' would carry single samples off this device" in answer.detail


def test_a_row_behind_a_mask_is_refused_by_name(server: CuriousServer) -> None:
    answer = server.ask("row", ONE_ROW, {}, {})

    assert isinstance(answer, Refusal)
    assert "pairs samples with entries that are told apart by their place" in answer.detail


@pytest.mark.parametrize(
    ("recipe", "returns", "rule"),
    [
        ({"batch": 1}, {}, "least_batch"),
        ({}, {"class_means": True}, "returns"),
        ({}, {"weights": "weights"}, "returns"),
    ],
    ids=["a batch of one", "class means", "weights"],
)
def test_what_the_owner_forbids_is_refused_by_rule(
    server: CuriousServer, recipe: dict[str, Any], returns: dict[str, Any], rule: str
) -> None:
    answer = server.ask(f"t-{rule}-{len(recipe)}-{len(returns)}-{returns.get('weights', '')}", HONEST, recipe, returns)

    assert isinstance(answer, Refusal)
    assert answer.rule == rule
    assert "the policy of this device's owner" in answer.detail


def test_an_honest_task_is_done(server: CuriousServer) -> None:
    answer = server.ask("honest", HONEST, {}, {})

    assert isinstance(answer, Update)
    assert answer.tensors is not None
