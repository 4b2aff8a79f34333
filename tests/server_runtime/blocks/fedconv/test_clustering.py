"""Devices grouped by their last layers: hand-made distances, K by silhouette, and what cannot be grouped."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.blocks.fedconv.clustering import cluster, embed


def layers(*groups: int, spread: float = 0.01) -> dict[str, NDArray[Any]]:
    """Devices d0, d1, … whose layers lie near one point per group, a few devices for each."""
    rng = np.random.default_rng(3)
    found = []
    for size in groups:
        centre = rng.normal(size=(4, 6))
        found += [centre + spread * rng.normal(size=(4, 6)) for _ in range(size)]
    return {f"d{number}": layer for number, layer in enumerate(found)}


def test_the_embedding_is_the_root_of_the_softmax() -> None:
    # softmax(0, ln 3) = (1/4, 3/4) and softmax(0, 0) = (1/2, 1/2).
    one, other = embed([np.array([[0.0, np.log(3)]]), np.zeros((1, 2))])

    np.testing.assert_allclose(one, [0.5, np.sqrt(0.75)])
    # Hellinger: sqrt(1 - Σ sqrt(p q)), and |u - u'| = sqrt(2) times that.
    hellinger = np.sqrt(1 - (np.sqrt(0.125) + np.sqrt(0.375)))
    np.testing.assert_allclose(np.linalg.norm(one - other), np.sqrt(2) * hellinger)


@pytest.mark.parametrize("groups", [(3, 3), (2, 4, 3), (4, 2, 2, 2)], ids=str)
def test_the_silhouette_finds_how_many_there_are(groups: tuple[int, ...]) -> None:
    expected = [number for number, size in enumerate(groups) for _ in range(size)]

    found = cluster(layers(*groups), seed=1)

    assert list(found.values()) == expected


def test_devices_that_are_all_alike_are_one_cluster() -> None:
    same = {f"d{number}": np.ones((2, 3)) for number in range(4)}

    assert set(cluster(same, seed=1).values()) == {0}
    assert set(cluster(layers(5, spread=1e-9), seed=1, most=1).values()) == {0}


def test_labels_do_not_depend_on_the_order_of_devices() -> None:
    given = layers(3, 3)

    assert cluster(dict(reversed(given.items())), seed=1) == cluster(given, seed=1)


def test_one_device_is_a_cluster() -> None:
    assert cluster(layers(1), seed=1) == {"d0": 0}


def test_more_clusters_than_devices() -> None:
    with pytest.raises(ConfigError, match="4 clusters are asked for but there are 3 devices; lower"):
        cluster(layers(3), seed=1, exact=4)


def test_layers_of_different_size() -> None:
    given = {"a": np.zeros((10, 32)), "b": np.zeros((10, 16))}

    with pytest.raises(ConfigError, match=r"last layers of a and b have shapes \[10, 32\] and \[10, 16\]; cluster"):
        cluster(given, seed=1)


def test_nobody_to_cluster() -> None:
    with pytest.raises(ConfigError, match="no devices to cluster"):
        cluster({}, seed=1)
