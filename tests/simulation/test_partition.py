"""Partitioners deal rows once, lose only what they say they lose, and repeat themselves for the same seed."""

import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwright.device_runtime.data.graph import inner_edges
from fedwright.protocol.errors import ConfigError, DataError
from fedwright.simulation import partition
from fedwright.simulation.datasets import load
from fedwright.simulation.partition import Least, Share, Split

CLASSES = 5
Dealer = Callable[[np.ndarray, int, np.random.Generator, Split], dict[str, Share]]


def ring(count: int) -> np.ndarray:
    return np.stack([np.arange(count), (np.arange(count) + 1) % count], axis=1)


DEALERS: dict[str, Dealer] = {
    "iid": lambda y, n, rng, split: partition.by_iid(len(y), n, rng=rng, split=split),
    "dirichlet": lambda y, n, rng, split: partition.by_dirichlet(y, n, alpha=2, rng=rng, split=split, least=1),
    "constrained": lambda y, n, rng, split: partition.by_dirichlet(
        y, n, alpha=5, rng=rng, split=split, least=Least(3, classes=2)
    ),
    "balanced": lambda y, n, rng, split: partition.by_balanced_dirichlet(y, n, alpha=0.3, rng=rng, split=split),
    "shards": lambda y, n, rng, split: partition.by_shards(y, n, shards=CLASSES, rng=rng, split=split),
    "few classes": lambda y, n, rng, split: partition.by_few_classes(y, n, classes_each=3, rng=rng, split=split),
    "owner": lambda y, n, rng, split: partition.by_owner(
        np.arange(len(y)) % n, [f"Owner No. {i}" for i in range(n)], rng=rng, split=split
    ),
    "metis": lambda y, n, rng, split: partition.by_metis(ring(len(y)), len(y), n, rng=rng, split=split),
}
# How many of the rows each may lose; zero unless its docstring says so.
LOSSES: dict[str, Callable[[int, int], int]] = {"balanced": lambda rows, devices: rows % devices}


@pytest.mark.parametrize("kind", DEALERS)
@given(seed=st.integers(0, 2**32 - 1), devices=st.integers(2, 6), rows=st.integers(90, 200))
@settings(max_examples=25, deadline=None)
def test_every_row_once_and_the_same_again(kind: str, seed: int, devices: int, rows: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.arange(rows) % CLASSES)

    shares = DEALERS[kind](labels, devices, np.random.default_rng(seed), Split(val=0.1, test=0.2))
    again = DEALERS[kind](labels, devices, np.random.default_rng(seed), Split(val=0.1, test=0.2))

    dealt = np.concatenate([share.rows for share in shares.values()])
    assert len(shares) == devices
    assert len(np.unique(dealt)) == len(dealt)
    assert rows - len(dealt) == (LOSSES[kind](rows, devices) if kind in LOSSES else 0)
    assert dealt.min() >= 0
    assert dealt.max() < rows
    for device, share in shares.items():
        np.testing.assert_array_equal(share.train, again[device].train)
        np.testing.assert_array_equal(share.val, again[device].val)
        np.testing.assert_array_equal(share.test, again[device].test)


def test_digits_for_eight_devices() -> None:
    data = load("digits")

    shares = partition.by_dirichlet(data.y_train.astype(np.int64), 8, alpha=0.3, rng=np.random.default_rng(7))

    dealt = np.concatenate([share.rows for share in shares.values()])
    assert sorted(dealt.tolist()) == list(range(len(data.y_train)))
    assert min(len(share.rows) for share in shares.values()) >= 10
    assert min(len(share.test) for share in shares.values()) >= 1


@pytest.mark.parametrize(
    ("rows", "split", "sizes"),
    [
        (10, Split(), (8, 0, 2)),
        (10, Split(val=0.1, test=0.2), (7, 1, 2)),
        (3, Split(val=0.1, test=0.2), (1, 1, 1)),
        (2, Split(val=0.1, test=0.2), (1, 0, 1)),
        (1, Split(), (1, 0, 0)),
        (10, Split(test=0), (10, 0, 0)),
    ],
)
def test_cut(rows: int, split: Split, sizes: tuple[int, int, int]) -> None:
    share = partition.cut(np.arange(rows), split)

    assert (len(share.train), len(share.val), len(share.test)) == sizes


def test_iid_sizes_differ_by_one() -> None:
    shares = partition.by_iid(11, 3, rng=np.random.default_rng(0))

    assert sorted(len(share.rows) for share in shares.values()) == [3, 4, 4]


def test_small_alpha_is_more_skewed_than_large() -> None:
    labels = np.arange(2000) % 10

    def largest_share(alpha: float) -> float:
        shares = partition.by_dirichlet(labels, 5, alpha=alpha, rng=np.random.default_rng(1))
        tops = [max(Counter(labels[share.rows].tolist()).values()) / len(share.rows) for share in shares.values()]
        return float(np.mean(tops))

    assert largest_share(0.1) > 2 * largest_share(10_000)


def test_constrained_draw_keeps_its_promise() -> None:
    labels = np.arange(5000) % 10

    shares = partition.by_dirichlet(labels, 5, alpha=0.5, rng=np.random.default_rng(2), least=Least(500, classes=3))

    assert min(len(share.rows) for share in shares.values()) >= 500
    assert min(len(np.unique(labels[share.rows])) for share in shares.values()) >= 3


def test_balanced_shares_follow_their_mixes_on_train_and_test() -> None:
    rng = np.random.default_rng(3)
    mixes = partition.dirichlet_mixes(6, 10, alpha=0.3, rng=rng)

    train = partition.deal_by_mix(np.arange(6000) % 10, mixes, rng=rng)
    test = partition.deal_by_mix(np.arange(1200) % 10, mixes, rng=rng)

    assert {len(rows) for rows in train} == {1000}
    assert {len(rows) for rows in test} == {200}
    for one, other in zip(train, test, strict=True):
        a = np.bincount(one % 10, minlength=10) / len(one)
        b = np.bincount(other % 10, minlength=10) / len(other)
        assert np.abs(a - b).sum() < 0.35


def test_balanced_deal_ends_when_a_device_has_run_out_of_its_classes() -> None:
    mixes = np.array([[1.0, 0.0], [1.0, 0.0]])

    dealt = partition.deal_by_mix(np.array([0, 0, 1, 1, 1, 1]), mixes, rng=np.random.default_rng(4))

    assert sorted(np.concatenate(dealt).tolist()) == [0, 1, 2, 3, 4, 5]


def test_shards_give_each_device_the_classes_of_the_table() -> None:
    table = np.array([[0, 1], [2, 2], [1, 0]])
    labels = np.array([0] * 4 + [1] * 5 + [2] * 6)

    dealt = partition.deal_by_shards(labels, table, rng=np.random.default_rng(5))

    assert [Counter(labels[rows].tolist()) for rows in dealt] == [{0: 2, 1: 3}, {2: 6}, {1: 2, 0: 2}]


def test_one_shard_table_serves_two_sets() -> None:
    rng = np.random.default_rng(6)
    table = partition.shard_table(10, 10, shards=3, rng=rng)
    labels = np.arange(600) % 10

    train = partition.deal_by_shards(labels, table, rng=rng)
    test = partition.deal_by_shards(labels[:300], table, rng=rng)

    assert [set(labels[rows].tolist()) for rows in train] == [set(labels[rows].tolist()) for rows in test]
    assert {len(rows) for rows in train} == {60}


def test_two_classes_each_and_all_classes_held() -> None:
    labels = np.arange(400) % 10

    shares = partition.by_few_classes(labels, 8, rng=np.random.default_rng(7))

    held = [np.unique(labels[share.rows]).tolist() for share in shares.values()]
    assert {len(classes) for classes in held} == {2}
    holders = Counter(label for classes in held for label in classes)
    assert sorted(holders) == list(range(10))
    assert max(holders.values()) == 2


def test_classes_that_nobody_holds_are_lost() -> None:
    shares = partition.by_few_classes(np.arange(100) % 10, 2, rng=np.random.default_rng(8))

    assert sum(len(share.rows) for share in shares.values()) == 40


def test_owner_keeps_units_whole_and_tiny_owners_alive() -> None:
    owner = np.array([0] * 12 + [1] * 2)
    unit = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4])

    shares = partition.by_owner(
        owner, ["Better Humans", "7"], rng=np.random.default_rng(9), split=Split(test=0.25), unit=unit
    )

    assert list(shares) == ["better-humans", "device-7"]
    assert len(shares["better-humans"].test) == 3
    assert len(np.unique(unit[shares["better-humans"].test])) == 1
    assert shares["device-7"].train.tolist() == [12, 13]


def test_owners_that_become_one_device() -> None:
    with pytest.raises(DataError, match="both be device 'a-b'"):
        partition.by_owner(np.array([0, 1]), ["A b", "a-B"], rng=np.random.default_rng(0))


def test_metis_cuts_two_cliques_where_they_touch() -> None:
    cliques = [[(a + base, b + base) for a in range(6) for b in range(a)] for base in (0, 6)]
    edges = np.array([*cliques[0], *cliques[1], (0, 6)])

    shares = partition.by_metis(edges, 12, 2, rng=np.random.default_rng(10), split=Split(test=0))

    pieces = sorted(sorted(share.rows.tolist()) for share in shares.values())
    assert pieces == [list(range(6)), list(range(6, 12))]


def test_metis_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)

    with pytest.raises(ConfigError, match=r"fedwright\[graphs\]"):
        partition.by_metis(ring(10), 10, 2, rng=np.random.default_rng(0))


def test_a_fleet_too_large_for_its_draws_still_gets_its_rows() -> None:
    labels = np.arange(1800) % CLASSES

    shares = partition.by_dirichlet(labels, 100, alpha=0.1, rng=np.random.default_rng(3), least=10)

    held = [len(share.rows) for share in shares.values()]
    assert min(held) == 10 < max(held)
    assert sorted(row for share in shares.values() for row in share.rows) == list(range(1800))


def test_inner_edges_are_renumbered() -> None:
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 0]])

    assert inner_edges(edges, np.array([3, 2, 0])).tolist() == [[1, 0], [0, 2]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda y, rng: partition.by_iid(10, 0, rng=rng), "0 devices"),
        (lambda y, rng: partition.by_iid(3, 4, rng=rng), "3 rows cannot give 4 devices"),
        (lambda y, rng: partition.by_dirichlet(y, 4, alpha=0, rng=rng), "alpha 0"),
        (lambda y, rng: partition.by_dirichlet(y, 4, alpha=float("nan"), rng=rng), "alpha nan"),
        (lambda y, rng: partition.by_dirichlet(y, 4, alpha=1, rng=rng, least=10), "20 rows cannot"),
        (lambda y, rng: partition.by_dirichlet(y, 4, alpha=0.01, rng=rng, least=Least(5, 3)), "no Dirichlet"),
        (lambda y, rng: partition.by_shards(y, 4, shards=2, rng=rng), "multiple of 5"),
        (lambda y, rng: partition.by_few_classes(y, 4, classes_each=6, rng=rng), "6 of 5 classes"),
        (lambda y, rng: partition.by_shards(y[y != 2], 5, shards=2, rng=rng), "class 2 has no rows"),
        (lambda y, rng: partition.by_few_classes(y[y != 0], 4, rng=rng), "class 0 has no rows, so nobody can get"),
        (lambda y, rng: Split(val=0.5, test=0.5), "nothing to train on"),
    ],
)
def test_impossible_partition(call: Callable[[np.ndarray, np.random.Generator], object], words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        call(np.arange(20) % CLASSES, np.random.default_rng(0))
