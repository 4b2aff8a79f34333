"""What an edge keeps of its clusters: projections that a repeated round starts from again, labels, the last layer."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from msgspec import structs

from fedwright.protocol.artifact import Slot
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.messages import BlobRef, Part, Recipe, Returns, Stats, Task, Update
from fedwright.server_runtime.blocks.fedconv.cluster_exchange import ExchangeOptions
from fedwright.server_runtime.edge.clusters import Clustered, ExchangeNeeds, _Cluster, last_layer
from fedwright.server_runtime.edge.pooled_update import PooledReply, Reader
from helpers.tiny_artifact import make_artifact

EQ8 = ExchangeOptions("eq8", quantile=1.0, steps=5)
REF = BlobRef("0" * 64, 0, 1024, [])
STATS = Stats(samples=1, steps=1, train_s=0.0, cpu_s=0.0, peak_rss_bytes=0)


class Notes(dict[str, Any]):
    """Notes in memory."""

    note = dict.get
    save_note = dict.__setitem__


def clusters(number: int, widths: tuple[int, int] = (4, 6), identity: str | None = None) -> list[_Cluster]:
    """Two clusters, of different size unless told otherwise, in a round."""
    rng = np.random.default_rng(number)
    found = []
    for device, width in zip("ab", widths, strict=True):
        task = Task(device, "boot", "run", number, REF, REF, Recipe(1, 0.1, 0), Returns(), 1.0, run_identity=identity)
        base = {"head.weight": rng.normal(size=(3, width)), "head.bias": rng.normal(size=3)}
        values = {name: 0.1 * rng.normal(size=value.shape) for name, value in base.items()}
        values |= {"prototypes": rng.normal(size=(3, width)), "prototype_counts": np.array([2.0, 3.0, 1.0])}
        found.append(_Cluster(device, task, [Part(device, STATS)], base, values, ("head.weight", "head.bias"), device))
    return found


def exchanged(notes: Notes, number: int, identity: str | None = None) -> list[np.ndarray]:
    """The changes of last layers after the exchange of a round."""
    found = clusters(number, identity=identity)
    Clustered(ExchangeNeeds(exchange=EQ8), notes)._exchange(found, EQ8, {})
    return [one.values["head.weight"] for one in found]


def test_a_round_that_is_done_again_starts_from_the_same_projections() -> None:
    notes = Notes()
    exchanged(notes, 1)
    first = exchanged(notes, 2)
    again = exchanged(notes, 2)
    fresh = exchanged(Notes(), 2)

    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert not np.array_equal(first[0], fresh[0])


def test_another_run_of_the_same_name_starts_without_projections() -> None:
    notes = Notes()
    exchanged(notes, 1, "aa")
    again = exchanged(notes, 2, "aa")
    other = exchanged(notes, 2, "bb")
    fresh = exchanged(Notes(), 2, "bb")

    assert all(np.array_equal(one, same) for one, same in zip(other, fresh, strict=True))
    assert not np.array_equal(again[0], fresh[0])


def test_projections_of_an_earlier_release_are_read() -> None:
    notes, other = Notes(), Notes()
    for one in (notes, other):
        exchanged(one, 1)
    # It kept no run with them.
    number, before, after, _ = msgspec.msgpack.decode(notes["projections"])
    notes["projections"] = msgspec.msgpack.encode((number, before, after))

    assert all(np.array_equal(a, b) for a, b in zip(exchanged(notes, 2), exchanged(other, 2), strict=True))


def test_without_class_means_nothing_is_exchanged(caplog: pytest.LogCaptureFixture) -> None:
    found = clusters(1)
    for one in found:
        del one.values["prototypes"]
    before = [one.values["head.weight"].copy() for one in found]

    Clustered(ExchangeNeeds(exchange=EQ8), Notes())._exchange(found, EQ8, {})

    assert all(np.array_equal(one.values["head.weight"], was) for one, was in zip(found, before, strict=True))
    assert "devices sent no class means, so nothing is exchanged; set update.class_means" in caplog.text


def test_it_is_said_once_that_all_last_layers_have_one_width(caplog: pytest.LogCaptureFixture) -> None:
    grouping = Clustered(ExchangeNeeds(exchange=EQ8), Notes())
    for number in (1, 2):
        grouping._exchange(clusters(number, widths=(4, 4)), EQ8, {})

    assert len(caplog.messages) == 1
    assert "all last layers of this round have 4 inputs, so nothing is exchanged" in caplog.text
    assert "exchange.form" in caplog.text


def test_the_last_layer_is_the_last_matrix_with_a_row_per_class() -> None:
    names = {"first.weight": [3, 5], "head.weight": [3, 4], "head.bias": [3], "scale": [4]}
    slots = [Slot(name, f"{name}.new", shape, "trainable") for name, shape in names.items()]
    manifest = structs.replace(make_artifact().manifest, classes=3, slots=slots)

    assert last_layer(manifest, ExchangeNeeds(2)) == ("head.weight", "head.bias")
    assert last_layer(structs.replace(manifest, slots=slots[:2]), ExchangeNeeds(2)) == ("head.weight", None)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (ExchangeNeeds(most=3), r"which cluster\.most = 3 needs; leave that out of the edge's config"),
        (ExchangeNeeds(exact=2), r"which cluster\.exact = 2 needs; leave"),
        (ExchangeNeeds(exchange=EQ8), r"which exchange\.form = 'eq8' needs; leave"),
        (ExchangeNeeds(most=3, exchange=EQ8), r"which cluster\.most = 3 and exchange\.form = 'eq8' need; leave them"),
    ],
    ids=["most", "exact", "exchange", "both"],
)
def test_a_model_without_a_last_linear_layer_names_what_asks_for_one(wanted: ExchangeNeeds, says: str) -> None:
    manifest = structs.replace(make_artifact().manifest, classes=999)

    with pytest.raises(ConfigError, match=says):
        last_layer(manifest, wanted)


def test_devices_that_are_known_stay_in_their_cluster() -> None:
    known = {"a": (REF.sha256, "a"), "b": (REF.sha256, "b")}
    notes = Notes(clusters=msgspec.msgpack.encode(known))
    members = [PooledReply(one.name, one.task, Update(one.name, 1, STATS)) for one in clusters(1)]
    nobody_reads = cast(Reader, None)

    labels = Clustered(ExchangeNeeds(most=3), notes)._labels(members, np.zeros((3, 4)), "head.weight", nobody_reads)

    assert labels == {"a": "a", "b": "b"}


def test_clusters_of_another_run_of_the_same_name_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"a": (f"aa/{REF.sha256}", "a"), "b": (f"aa/{REF.sha256}", "b")}
    found = {}
    monkeypatch.setattr("fedwright.server_runtime.edge.clusters.cluster", lambda layers, **_: dict.fromkeys(layers, 7))
    reader = cast(Reader, SimpleNamespace(read=lambda task, update: {"head.weight": np.zeros((3, 4))}))
    for identity in ("aa", "bb"):
        notes = Notes(clusters=msgspec.msgpack.encode(known))
        members = [
            PooledReply(one.name, one.task, Update(one.name, 1, STATS)) for one in clusters(1, identity=identity)
        ]
        found[identity] = Clustered(ExchangeNeeds(most=3), notes)._labels(
            members, np.zeros((3, 4)), "head.weight", reader
        )

    assert found == {"aa": {"a": "a", "b": "b"}, "bb": {"a": "a", "b": "a"}}
