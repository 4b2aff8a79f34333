"""What a device tells of its data under local differential privacy: noise as it must be, and told once."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.describe import local_privacy
from fedwright.device_runtime.describe.local_privacy import private_summary, told_once
from fedwright.device_runtime.equipment import make_equipment
from fedwright.device_runtime.equipment_settings import EquipmentSettings
from fedwright.device_runtime.policy import Policy
from fedwright.protocol.crypto.discrete_gaussian import DiscreteLaplace
from fedwright.protocol.errors import ConfigError
from helpers.present import present


def data_of(labels: list[int], *, names: tuple[str, ...] = (), value: float = 0.0) -> LocalData:
    y = np.asarray(labels, np.int64)
    x = np.full((len(y), 1, 8, 8), value, np.float32)
    x[:, 0, :4] += np.float32(0.5)
    counts = tuple(int(count) for count in np.bincount(y, minlength=4))
    return LocalData(x, y, x[:1], y[:1], 4, counts, (1, 8, 8), class_names=names)


def seed(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_the_discrete_laplace_is_drawn_as_its_formula_says() -> None:
    drawn = DiscreteLaplace(2, seed(1)).draw(60_000)

    # P[0] = (1 - q) / (1 + q) with q = e^(-1/2), and every step away from it is a factor of q.
    shares = [(np.abs(drawn) == number).mean() for number in range(4)]
    q = np.exp(-0.5)
    assert shares[0] == pytest.approx((1 - q) / (1 + q), rel=0.03)
    assert shares[2] / shares[1] == pytest.approx(q, rel=0.03)
    assert shares[3] / shares[2] == pytest.approx(q, rel=0.04)
    assert abs(drawn.mean()) < 0.05


def test_counts_of_neighbours_come_out_alike_to_a_factor_of_e_to_the_epsilon() -> None:
    """Told of 40 and 0, or of 39 and 1: no event is likelier by more than e^ε, and something tells them apart."""
    told = []
    for labels in ([0] * 40, [0] * 39 + [1]):
        plain = data_of(labels).summary()
        rows = [local_privacy._counts(plain, 1.0, seed(number)) for number in range(700)]
        told.append(np.asarray(rows))
    bounds = [np.asarray([(rows[:, 0] >= least).mean() for rows in told]) for least in range(36, 44)]

    for shares in bounds:
        assert shares.min() > 0.05
        assert shares.max() / shares.min() < np.exp(1.0)
        assert (1 - shares.min()) / (1 - shares.max()) < np.exp(1.0)
    assert max(abs(shares[0] - shares[1]) for shares in bounds) > 0.02


def test_classes_that_are_not_there_are_seldom_told_of_and_names_and_words_never() -> None:
    plain = data_of([0] * 300).summary()
    found = [local_privacy._counts(plain, 1.0, seed(number)) for number in range(60)]

    assert np.mean([row[0] for row in found]) == pytest.approx(300, abs=2)
    assert np.mean([[count > 0 for count in row[1:]] for row in found]) < 0.1
    named = private_summary(data_of([0, 1] * 50, names=("ann", "bob", "cy", "di")), 3.0, seed=seed(1))
    assert (named.class_names, named.class_counts, named.score_counts, named.number_descriptor) == (
        [],
        None,
        None,
        None,
    )


def test_one_sample_moves_the_descriptor_by_no_more_than_the_noise_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_privacy, "features", lambda x: np.tile(x.reshape(len(x), -1)[:, :1], (1, 128)))
    usual, loud, lost = (data_of([0] * 50, value=-0.4) for _ in range(3))
    loud.x[7] = 1e6
    lost.x[7] = np.nan
    rows = [np.asarray(present(private_summary(one, 3.0, seed=seed(2)).descriptor)) for one in (usual, loud, lost)]

    for row in rows[1:]:
        assert 0 < np.linalg.norm(row - rows[0]) <= 2 * local_privacy.CLIP / 50 * 1.2
    # The noise of a share of 1: sqrt(ρ) = sqrt(L + 1) - sqrt(L) with L = log 10^6, for a reach of 8 / 50.
    sigma = 8 / 50 / (2**0.5 * ((np.log(1e6) + 1) ** 0.5 - np.log(1e6) ** 0.5))
    assert np.std(rows[0] - 0.1) == pytest.approx(sigma, rel=0.3)


def test_spread_of_pixels_is_about_what_it_is() -> None:
    found = [local_privacy._spread(data_of([0] * 200), 2.0, seed(number)) for number in range(50)]

    assert np.mean(found) == pytest.approx(0.25, abs=0.01)
    assert 0.001 < np.std(found) < 0.01


def test_it_is_told_once_whatever_comes_of_the_data(tmp_path: Path) -> None:
    first = told_once(data_of([0] * 100), 2.0, tmp_path)
    again = told_once(data_of([0] * 100), 2.0, tmp_path)
    later = told_once(data_of([1] * 150), 1.0, tmp_path)

    assert first == again
    assert later == structs.replace(first, samples=150)
    (tmp_path / local_privacy.TOLD).write_bytes(b"\xc1")
    with pytest.raises(ConfigError, match="put a copy back, or remove it to tell as much anew"):
        told_once(data_of([0] * 100), 2.0, tmp_path)


def test_an_owner_asks_for_it_in_the_policy(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((60, 1, 8, 8), np.float32), y=np.arange(60) % 3)
    policy = Policy(tells_epsilon=3.0)
    settings = EquipmentSettings(f"npz:{tmp_path / 'data.npz'}", str(tmp_path), str(tmp_path), 0.2, policy=policy)

    told = [make_equipment(settings).told for _ in range(2)]

    assert told[0] == told[1]
    assert present(told[0]).descriptor != make_equipment(settings).data.summary().descriptor
