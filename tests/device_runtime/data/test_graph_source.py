"""A graph as a device's data: what is read, what is refused, and what training and evaluation see of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.device_runtime.data import LocalData, load
from fedwright.device_runtime.data.graph import side_by_side
from fedwright.device_runtime.run_task import _chosen
from fedwright.device_runtime.train import loop
from fedwright.protocol.errors import DataError
from fedwright.protocol.messages import Recipe

# A path 0 - 1 - 2 - 3 - 4, with the edge 1 - 0 named twice and a loop at 3.
PATH = [[0, 1], [1, 2], [2, 3], [3, 4], [1, 0], [3, 3]]


def save(folder: Path, **changes: Any) -> str:
    arrays = {"x": np.eye(5, dtype=np.float32), "y": np.array([0, 1, 0, 1, 0]), "edges": np.array(PATH), **changes}
    np.savez(folder / "own.graph.npz", **{name: value for name, value in arrays.items() if value is not None})
    return f"graph:{folder / 'own.graph.npz'}"


def read(source: str, holdout_ratio: float = 0.4) -> LocalData:
    return load(source, holdout_ratio=holdout_ratio, seed=1)


class Neighbours:
    """Answers every node with the sum of its neighbours' first features; remembers the batches it was given."""

    def __init__(self) -> None:
        self.seen: list[dict[str, NDArray[Any]]] = []

    def predict(self, batch: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
        self.seen.append(batch)
        total = np.zeros((len(batch["x"]), 2))
        for one, other in batch["edges"]:
            total[one, 0] += batch["x"][other].argmax() + 1
            total[other, 0] += batch["x"][one].argmax() + 1
        return total, total

    def step(self, batch: dict[str, NDArray[Any]], *, learning_rate: float, seed: int) -> Any:
        self.seen.append(batch)
        raise StopIteration


def test_edges_are_read_once_each_without_loops(tmp_path: Path) -> None:
    data = read(save(tmp_path), holdout_ratio=0.0)
    assert data.edges is not None
    assert data.edges.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert data.input_shape == (5,)


def test_a_file_called_graph_needs_no_scheme(tmp_path: Path) -> None:
    source = save(tmp_path).removeprefix("graph:")
    assert read(source).edges is not None
    assert read(f"npz:{source}").edges is None


def test_held_out_nodes_are_those_of_the_file_and_edges_follow_them(tmp_path: Path) -> None:
    data = read(save(tmp_path, holdout=np.array([1, 3])))
    # Training nodes 0, 2, 4 are numbers 0 to 2 now, the held-out 1 and 3 numbers 3 and 4.
    assert data.x.argmax(axis=1).tolist() == [0, 2, 4]
    assert data.edges is not None
    assert sorted(sorted(edge) for edge in data.edges.tolist()) == [[0, 3], [1, 3], [1, 4], [2, 4]]


def test_a_held_out_node_is_predicted_among_all_nodes_and_training_sees_no_edge_to_it(tmp_path: Path) -> None:
    data, model = read(save(tmp_path, holdout=np.array([1]))), Neighbours()
    loop.evaluate(model, data)
    # Node 1 lies between 0 and 2: (0 + 1) + (2 + 1).
    assert model.predict(model.seen[0])[0][4, 0] == 4
    loop.class_means(model, data)
    # Of the training nodes 0, 2, 3, 4 only 2 - 3 and 3 - 4 are joined.
    assert model.seen[-1]["edges"].tolist() == [[1, 2], [2, 3]]


def test_a_batch_has_the_edges_between_its_own_nodes(tmp_path: Path) -> None:
    data = read(save(tmp_path), holdout_ratio=0.0)
    batch = loop.batch_of(data, np.array([3, 0, 2]))
    assert batch["x"].argmax(axis=1).tolist() == [3, 0, 2]
    assert batch["edges"].tolist() == [[2, 0]]


def test_a_task_of_some_classes_keeps_the_edges_between_their_nodes(tmp_path: Path) -> None:
    data = read(save(tmp_path, y=np.array([0, 0, 1, 1, 0]), holdout=np.array([4])))
    own = _chosen(data, Recipe(batch=4, learning_rate=0.1, seed=1, epochs=1, classes=[1]))
    assert own.x.argmax(axis=1).tolist() == [2, 3]
    # 2 - 3, and 3 - 4, which is held out.
    assert own.edges is not None
    assert own.edges.tolist() == [[0, 1], [1, 2]]


def test_graphs_side_by_side() -> None:
    first, second = np.array([[0, 1]]), np.array([[0, 2]])
    found = side_by_side([(first, 2), (None, 3), (second, 3)])
    assert found is not None
    assert found.tolist() == [[0, 1], [5, 7]]
    assert side_by_side([(None, 3)]) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": None}, "has no 'edges'"),
        ({"edges": np.array([[0, 5]])}, "name node 5, but there are 5"),
        ({"edges": np.array([[-1, 2]])}, "name node -1"),
        ({"edges": np.array([0, 1])}, "make them \\[m, 2\\] whole"),
        ({"edges": np.array([[0.5, 1.0]])}, "make them \\[m, 2\\] whole"),
        ({"holdout": np.array([7])}, "holdout name node 7"),
        ({"holdout": np.arange(5)}, "all 5 nodes are held out"),
        ({"holdout": np.array([0.5])}, "must be a list of node numbers"),
    ],
    ids=["no edges", "beyond", "negative", "one column", "fractions", "no such node", "all", "fraction"],
)
def test_graph_mistakes(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(save(tmp_path, **changes))


def test_a_graph_without_edges_is_data_too(tmp_path: Path) -> None:
    data = read(save(tmp_path, edges=np.empty((0, 2), np.int64)))
    assert replace(data).edges is not None
    assert loop.batch_of(data, np.array([0]))["edges"].shape == (0, 2)
