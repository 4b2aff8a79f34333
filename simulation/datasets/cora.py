"""Cora: 2,708 papers with word features, 7 subjects and 5,278 citations."""

import numpy as np

from fedwright.protocol.errors import DataError
from fedwright.simulation.datasets.base import DataSet
from fedwright.simulation.datasets.files import Progress, Source, fetch, load_arrays

CORA = Source("cora.npz", origin="github.com/kimiyoung/planetoid (ind.cora files)")
CLASSES = 7


def load_cora(progress: Progress | None) -> DataSet:
    """All nodes are in x_train and y_train, undirected edges in extra["edges"]; a partition says who tests on what."""
    path = fetch(CORA, progress)
    data = load_arrays(path, ("indptr", "indices", "shape", "labels", "edges"))
    nodes, features = (int(length) for length in data["shape"])
    if len(data["indptr"]) != nodes + 1 or len(data["labels"]) != nodes or data["edges"].max(initial=0) >= nodes:
        raise DataError(f"{path} has features, labels and edges that do not belong together; get it again")
    x = np.zeros((nodes, features), np.float32)
    x[np.repeat(np.arange(nodes), np.diff(data["indptr"])), data["indices"]] = 1
    return DataSet(
        name="cora",
        kind="graph",
        x_train=x,
        y_train=data["labels"].astype(np.int64),
        x_test=x[:0],
        y_test=np.zeros(0, np.int64),
        classes=tuple(f"subject {number}" for number in range(CLASSES)),
        extra={"edges": data["edges"].astype(np.int64)},
    )
