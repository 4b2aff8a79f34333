"""What edges show each other: as bytes, on one edge, and by way of the host."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.protocol import tensors
from fedwright.protocol.blobs import BlobStore, make_ref
from fedwright.protocol.errors import BadBlob
from fedwright.protocol.messages import BlobRef, Shown
from fedwright.protocol.uploads import Uploads
from fedwright.server_runtime.blocks.fedconv.cluster_exchange import ClassMeans, ClusterView, Head
from fedwright.server_runtime.edge import cluster_sharing as circles
from fedwright.server_runtime.edge.cluster_sharing import ClusterSharing
from fedwright.server_runtime.edge.cluster_views import pack_views, unpack_views
from fedwright.server_runtime.transport.cluster_relay import ClusterRelay
from helpers.present import present

CLASSES = 3


class Notes(dict[str, Any]):
    """Notes in memory."""

    note = dict.get
    save_note = dict.__setitem__


def view(width: int = 4, *, form: Any = "eq8", seed: int = 0) -> ClusterView:
    """Of a cluster with classes 0 and 2."""
    rng = np.random.default_rng(seed)
    head = Head(rng.normal(size=(CLASSES, width)).astype(np.float32).astype(np.float64), np.zeros(CLASSES))
    x = rng.normal(size=(2, width)).astype(np.float32).astype(np.float64)
    return ClusterView.of(head, ClassMeans(x, np.array([0, 2]), np.array([5.0, 7.0])), form)


@pytest.mark.parametrize("form", ["folded", "eq8"])
def test_views_come_back_as_they_were(form: str) -> None:
    own = {"device-1": view(form=form), "device-2": view(6, form=form, seed=1)}

    found = unpack_views(pack_views(own), classes=CLASSES)

    assert found.keys() == own.keys()
    for name, one in own.items():
        np.testing.assert_array_equal(found[name].weight, one.weight)
        assert {label: answer.tolist() for label, answer in found[name].answers.items()} == {
            label: answer.tolist() for label, answer in one.answers.items()
        }
        assert (found[name].means is None) == (form == "folded")
        if form == "eq8":
            np.testing.assert_array_equal(present(found[name].means).x, present(one.means).x)
            assert present(found[name].means).y.tolist() == [0, 2]
            assert present(found[name].means).weight.tolist() == [5.0, 7.0]


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("weight", None, "the weight of cluster 'a' are missing or have another shape"),
        ("weight", np.zeros((2, 4), np.float32), "another shape"),
        ("weight", np.full((3, 4), np.nan, np.float32), "not all finite numbers"),
        ("weight", np.zeros((3, 4), np.int32), "not all finite numbers"),
        ("labels", np.array([2, 0]), r"not classes 0 … 2 in order"),
        ("labels", np.array([0, 3]), r"not classes 0 … 2 in order"),
        ("labels", np.array([0.0, 1.0]), "not a list of classes"),
        ("answers", np.zeros((1, 3)), "another shape"),
        ("answers", np.full((2, 3), 1.5), "not shares of 1"),
        ("means", np.zeros((2, 5), np.float32), "another shape"),
        ("means_of", np.array([1, 1]), "in order"),
        ("counts", np.array([1.0, 0.0]), "class means of nothing"),
    ],
)
def test_views_that_cannot_be_are_turned_down(kind: str, value: NDArray[Any] | None, says: str) -> None:
    whole = tensors.load(pack_views({"a": view()}))
    whole.pop(f"a\n{kind}")
    if value is not None:
        whole[f"a\n{kind}"] = value

    with pytest.raises(BadBlob, match=says):
        unpack_views(tensors.save(whole), classes=CLASSES)


def test_an_edge_remembers_what_it_showed_and_saw(tmp_path: Path) -> None:
    notes, blobs = Notes(), BlobStore(tmp_path)
    sharing = ClusterSharing("edge-1", notes, blobs)
    assert sharing.own() is None
    sharing.show("one", b"mine")
    sharing.take(Shown("one", "edge-2", make_ref(b"yours")))
    sharing.take(Shown("one", "edge-3"))

    again = ClusterSharing("edge-1", notes, blobs)

    assert present(present(again.own()).clusters).inline == b"mine"
    assert again.missing("one", ["edge-2", "edge-3", "edge-4"]) == ["edge-4"]
    assert again.views("one", ["edge-2", "edge-3", "edge-4"]) == {"edge-2": b"yours"}
    assert again.missing("two", ["edge-2"]) == ["edge-2"]
    assert again.views("two", ["edge-2"]) == {}


def test_nothing_of_an_earlier_stage_is_kept(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    sharing = ClusterSharing("edge-1", Notes(), blobs)
    for stage in ("one", "two", "three"):
        sharing.show(stage, b"mine" + stage.encode())
        sharing.take(Shown(stage, "edge-2", make_ref(b"yours" + stage.encode())))

    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"minethree", b"yoursthree"]


def test_an_edge_that_went_away_after_it_showed_its_clusters_still_counts(tmp_path: Path) -> None:
    sharing = ClusterSharing("edge-1", Notes(), BlobStore(tmp_path))
    sharing.take(Shown("one", "edge-2", make_ref(b"yours")))
    sharing.take(Shown("one", "edge-2"))

    assert sharing.views("one", ["edge-2"]) == {"edge-2": b"yours"}


def test_what_is_not_inline_is_fetched_first(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    sharing = ClusterSharing("edge-1", Notes(), blobs)
    ref = make_ref(b"yours", inline=False)
    sharing.take(Shown("one", "edge-2", ref))

    assert sharing.wanted() == [ref]
    assert sharing.missing("one", ["edge-2"]) == ["edge-2"]
    blobs.put_bytes(b"yours")
    assert sharing.wanted() == []
    assert sharing.missing("one", ["edge-2"]) == []


def test_an_edge_that_shows_too_much_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circles, "MOST_BYTES", 3)
    sharing = ClusterSharing("edge-1", Notes(), BlobStore(tmp_path))
    sharing.take(Shown("one", "edge-2", make_ref(b"yours")))

    assert "edge edge-2: blob of 5 bytes is over the limit of 3; its clusters are not linked" in caplog.text
    assert (sharing.missing("one", ["edge-2"]), sharing.views("one", ["edge-2"])) == ([], {})


class Host:
    """What a host tells whom, and what it asks for."""

    def __init__(self, folder: Path) -> None:
        self.said: list[tuple[str, str, str, bytes | None]] = []
        self.pulls: list[tuple[str, BlobRef]] = []
        self.blobs = BlobStore(folder)
        self.showing = ClusterRelay(
            self.blobs, Uploads(self.blobs), pull=lambda edge, ref: self.pulls.append((edge, ref)), send=self._send
        )

    def _send(self, edge: str, shown: Shown) -> None:
        data = None if shown.clusters is None else shown.clusters.inline
        self.said.append((edge, shown.edge, shown.stage, data))

    def show(self, edge: str, stage: str, data: bytes | None) -> None:
        """An edge shows some bytes, which come in the message."""
        self.showing.take(edge, Shown(stage, edge, None if data is None else make_ref(data)))
        if data is not None and self.pulls:
            self.blobs.put_bytes(data)
            self.showing.pulled(self.pulls.pop()[1].sha256)

    def heard(self) -> list[tuple[str, str, str, bytes | None]]:
        """What was told since the last call."""
        said, self.said = self.said, []
        return said


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_edges_of_a_stage_get_what_the_others_show(host: Host) -> None:
    host.show("edge-1", "one", b"a")
    assert host.heard() == []
    host.show("edge-2", "one", b"b")
    assert host.heard() == [("edge-1", "edge-2", "one", b"b"), ("edge-2", "edge-1", "one", b"a")]
    host.show("edge-3", "two", b"c")
    assert host.heard() == []


def test_an_edge_that_asks_again_is_told_again(host: Host) -> None:
    host.show("edge-1", "one", b"a")
    host.show("edge-2", "one", None)
    host.heard()
    host.show("edge-1", "one", b"a")

    assert ("edge-1", "edge-2", "one", None) in host.heard()


def test_nobody_waits_for_an_edge_that_is_away(host: Host) -> None:
    host.show("edge-1", "one", b"a")
    host.showing.lose("edge-2")
    assert host.heard() == [("edge-1", "edge-2", "one", None)]
    host.show("edge-3", "one", b"c")
    assert ("edge-3", "edge-2", "one", None) in host.heard()
    host.showing.back("edge-2")
    host.show("edge-4", "one", b"d")
    assert ("edge-4", "edge-2", "one", None) not in host.heard()


def test_what_an_edge_showed_before_it_went_away_still_counts(host: Host) -> None:
    host.show("edge-1", "one", b"a")
    host.showing.lose("edge-1")
    host.show("edge-2", "one", b"b")

    assert ("edge-2", "edge-1", "one", b"a") in host.heard()


def test_an_edge_speaks_for_itself_only(host: Host) -> None:
    host.show("edge-1", "one", b"a")
    host.showing.take("edge-2", Shown("one", "edge-1"))

    assert ("edge-1", "edge-2", "one", None) in host.heard()


def test_the_host_keeps_the_last_stage_only(host: Host, tmp_path: Path) -> None:
    for stage, data in (("one", b"a"), ("two", b"b")):
        host.show("edge-1", stage, data)
        host.show("edge-2", stage, data + b"2")

    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"b", b"b2"]
