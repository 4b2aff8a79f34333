"""A simulation of the user's own data: dealt out of one source, or one file per device, and mistakes in either."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.device_runtime import data
from fedwright.protocol.errors import ConfigError, DataError, FedwrightError
from fedwright.server_runtime.config import RunConfig
from fedwright.simulation.dealing import deal, local_data, reserve
from fedwright.simulation.simulate import simulate
from helpers.image_folders import write_folder
from helpers.present import present
from helpers.simulation import make_config


def rows(count: int, *, seed: int = 0) -> dict[str, Any]:
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return {"x": x, "y": (x.sum(axis=1) > 0).astype(np.int64)}


def make(folder: Path, source: str, **changes: Any) -> tuple[RunConfig, str]:
    simulated = {"data": source, "devices": 3, "rows": 1000, "evaluate_every": 0, "partition": "iid", **changes}
    return make_config(folder, model={"model": "mlp"}, fleet={"devices": 1}, simulate=simulated)


def test_every_kind_of_source_is_dealt_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows(60)
    np.savez(tmp_path / "d.npz", **made)
    (tmp_path / "d").mkdir()
    for name, array in made.items():
        np.save(tmp_path / "d" / f"{name}.npy", array)
    lines = [",".join(map(repr, [*map(float, x), int(y)])) for x, y in zip(made["x"], made["y"], strict=True)]
    (tmp_path / "d.csv").write_text("\n".join(["a,b,c,d,label", *lines]))
    (tmp_path / "my_own_rows.py").write_text(
        f"import numpy as np\ndef make():\n    return dict(np.load({str(tmp_path / 'd.npz')!r}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sources = [f"npz:{tmp_path}/d.npz", f"npy:{tmp_path}/d", f"csv:{tmp_path}/d.csv", "python:my_own_rows:make"]
    found = [deal(make(tmp_path, source)[0].simulate, seed=1) for source in sources]
    for dealt in found:
        np.testing.assert_array_equal(dealt.x, made["x"])
        np.testing.assert_array_equal(dealt.y, made["y"])
        assert [len(share.rows) for share in dealt.shares.values()] == [20, 20, 20]


def test_rows_of_a_source_are_limited_at_random(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(200.0).reshape(100, 2), y=np.repeat([0, 1], 50))
    dealt = deal(make(tmp_path, f"{tmp_path}/d.npz", rows=40)[0].simulate, seed=1)
    assert len(dealt.y) == 40
    assert set(dealt.y.tolist()) == {0, 1}


def test_images_with_names_are_simulated(tmp_path: Path) -> None:
    write_folder(tmp_path / "all", {"fox": 30, "cat": 30})
    config, text = make(tmp_path / "run", f"images:{tmp_path}/all")
    found = simulate(config, text)
    assert len(found.evaluations[-1].devices) == 3
    assert deal(config.simulate, seed=1).class_names == dict.fromkeys(
        ["device-0", "device-1", "device-2"], ("cat", "fox")
    )


def test_a_file_per_device_is_what_its_agent_holds(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    np.savez(folder / "pi-1.npz", **rows(20))
    np.savez(folder / "pi.two.npz", **rows(30, seed=1), x_holdout=rows(5)["x"], y_holdout=rows(5)["y"])
    config, text = make(tmp_path / "run", f"devices:{folder}")
    dealt = deal(config.simulate, seed=1)
    assert list(dealt.shares) == ["pi-1", "pi.two"]
    for device in dealt.shares:
        own, agent = local_data(dealt, device), data.load(f"{folder}/{device}.npz", holdout_ratio=0.2, seed=0)
        for part in ("x", "y", "x_holdout", "y_holdout"):
            np.testing.assert_array_equal(getattr(own, part), getattr(agent, part))
        assert own.summary() == agent.summary()
    assert [device.n for device in simulate(config, text).evaluations[-1].devices] == [4, 5]


def test_public_rows_of_named_devices_are_in_one_numbering(tmp_path: Path) -> None:
    write_folder(tmp_path / "fleet" / "a", {"fox": 20, "cat": 20})
    write_folder(tmp_path / "fleet" / "b", {"fox": 20, "ant": 20})
    config, _ = make_config(
        tmp_path, simulate={"data": f"devices:{tmp_path}/fleet"}, public={"rows": 30}, model={"model": "mlp"}
    )
    whole = deal(config.simulate, seed=1)
    rest, public = reserve(whole, config.public, seed=1)
    assert present(public).class_names == ("ant", "cat", "fox")
    # The bright bar stands in the line that the first letter chooses: a, c, f are 97, 99, 102.
    lines = present(public).x[:, 0].sum(axis=2).argmax(axis=1)
    assert lines.tolist() == [[97 % 8, 99 % 8, 102 % 8][label] for label in present(present(public).y)]
    assert sum(len(share.train) for share in rest.shares.values()) == 64 - 30


def write_unlike(folder: Path) -> None:
    np.savez(folder / "a.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1])
    np.savez(folder / "b.npz", x=np.zeros((4, 3)), y=[0, 1, 0, 1])


def write_twins(folder: Path) -> None:
    np.savez(folder / "a.npz", **rows(9))
    (folder / "a.csv").write_text("p,q,label\n1,2,0\n3,4,1\n")


@pytest.mark.parametrize(
    ("source", "write", "message"),
    [
        pytest.param("devices:{0}/none", None, "there is no folder .*none; name one", id="no folder"),
        pytest.param("devices:{0}", None, "is empty; put one .npz, .csv or folder per device", id="empty folder"),
        pytest.param("npz:{0}/none.npz", None, "does not exist", id="no file"),
        pytest.param("devices:{0}", write_unlike, r"device b have shape \[3\] but those of a \[2\]", id="shapes"),
        pytest.param("devices:{0}", write_twins, "data of device a already; keep one", id="two of a name"),
        pytest.param("devices:{0}", lambda d: (d / "a.txt").write_text(""), "neither .npz nor .csv nor a", id="kind"),
        pytest.param("devices:{0}", lambda d: np.savez(d / "a b.npz", **rows(9)), "the name of .*a b.npz", id="name"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, source: str, write: Callable[..., Any] | None, message: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    if write is not None:
        write(folder)
    config, _ = make(tmp_path, source.format(folder))
    with pytest.raises(FedwrightError, match=message):
        deal(config.simulate, seed=1)


def test_settings_that_do_not_go_together(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **rows(30))
    for changes, message in ({"dataset": "mnist"}, "both given"), ({"partition": "owner"}, "who made each example"):
        config, _ = make(tmp_path, f"{tmp_path}/d.npz", **changes)
        with pytest.raises(ConfigError, match=message):
            deal(config.simulate, seed=1)


def test_a_device_alone_in_naming_its_classes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "a.npz", **rows(20))
    np.savez(folder / "b.npz", **{**rows(20), "y": ["yes", "no"] * 10})
    config, text = make(tmp_path / "run", f"devices:{folder}")
    with pytest.raises(ConfigError, match="device a are numbers but those of device b have names"):
        simulate(config, text)
    with pytest.raises(ConfigError, match="only some name their classes"):
        reserve(deal(config.simulate, seed=1), make_config(tmp_path, public={"rows": 3})[0].public, seed=1)


def test_a_fraction_in_one_file_makes_all_fractions(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.csv").write_text("p,q,label\n1,2,0\n3,4,1\n5,6,0\n")
    (folder / "b.csv").write_text("p,q,label\n1,2.5,0\n3,4,1\n5,6,0\n")
    assert deal(make(tmp_path, f"devices:{folder}")[0].simulate, seed=1).x.dtype == np.float32
    (folder / "b.csv").unlink()
    assert deal(make(tmp_path, f"devices:{folder}")[0].simulate, seed=1).x.dtype == np.int64


def test_a_source_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "d.npz").write_text("hello")
    with pytest.raises(DataError, match="not a readable numpy archive"):
        deal(make(tmp_path, f"{tmp_path}/d.npz")[0].simulate, seed=1)
