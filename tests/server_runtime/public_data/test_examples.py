"""Examples on the server: read from a file, or taken out of what simulated devices train on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.protocol.errors import ConfigError, DataError
from fedwright.server_runtime.config import config_from_dict
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.server_runtime.method_setting import make_method
from fedwright.server_runtime.public_data.examples import PublicData, as_dtype, load_public, need_public
from fedwright.server_runtime.public_data.section import PublicSection
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.dealing import deal, reserve

SPEC = ModelSpec("cnn-small", (1, 8, 8), 10)


def written(folder: Path, *, shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> str:
    y = np.arange(50) % classes
    np.savez(folder / "public.npz", x=np.ones((50, *shape), np.float32) * y.reshape(-1, 1, 1, 1), y=y)
    return str(folder / "public.npz")


def test_a_file_gives_as_many_examples_as_asked_for_with_their_labels(tmp_path: Path) -> None:
    found = load_public(PublicSection(written(tmp_path), rows=20), SPEC, seed=1)
    assert found is not None
    assert len(found) == 20
    np.testing.assert_array_equal(found.x[:, 0, 0, 0], found.y)
    again = load_public(PublicSection(written(tmp_path), rows=20), SPEC, seed=1)
    assert again is not None
    np.testing.assert_array_equal(found.x, again.x)


def test_unlabelled_examples_have_no_labels(tmp_path: Path) -> None:
    found = load_public(PublicSection(written(tmp_path), labelled=False), SPEC, seed=1)
    assert found is not None
    assert len(found) == 50
    assert found.y is None
    with pytest.raises(ConfigError, match=r"needs labelled examples.*public\.labelled"):
        need_public(found, "fedmd", labels=True)


def test_examples_of_another_shape_or_class_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shape \[1, 4, 4\] but the model takes \[1, 8, 8\]"):
        load_public(PublicSection(written(tmp_path, shape=(1, 4, 4))), SPEC, seed=1)
    with pytest.raises(DataError, match="label 11 but the model has 10 classes"):
        load_public(PublicSection(written(tmp_path, classes=12)), SPEC, seed=1)


def test_labels_of_another_task_are_taken_where_the_config_says_so(tmp_path: Path) -> None:
    found = load_public(PublicSection(written(tmp_path, classes=12), foreign=True), SPEC, seed=1)
    assert found is not None
    assert found.y is not None
    assert found.y.max() == 11


@pytest.mark.parametrize(
    "method",
    [{"name": "fedavg"}, {"name": "fedmd"}, {"name": "fedconv"}],
    ids=["no use of them", "their labels as classes", "transfer is off"],
)
def test_labels_of_another_task_are_refused_by_methods_that_would_take_them_for_classes(
    tmp_path: Path, method: dict[str, str]
) -> None:
    section = {"file": written(tmp_path, classes=12), "foreign": True}
    config = config_from_dict({"run": {"rounds": 1}, "method": method, "public": section}, where="test")
    with pytest.raises(ConfigError, match=rf"public\.foreign .* but {method['name']} .*transfer"):
        make_method(config, SPEC)


def test_labels_of_another_task_are_for_transfer(tmp_path: Path) -> None:
    section = {"file": written(tmp_path, classes=12), "foreign": True}
    method = {"name": "fedconv", "transfer": True}
    config = config_from_dict({"run": {"rounds": 1}, "method": method, "public": section}, where="test")
    assert make_method(config, SPEC).state()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.ones((4, 1, 8, 8), np.float32)}, "cannot be read"),
        ({"x": np.full((4, 1, 8, 8), np.nan, np.float32), "y": np.arange(4)}, "finite numbers"),
        ({"x": np.ones((4, 1, 8, 8), np.float32), "y": np.arange(3)}, "one class number"),
        ({"x": np.ones((4, 1, 8, 8), np.float32), "y": np.array([0, 1, 2, -1])}, "one class number"),
        ({"x": np.array([{"a": 1}] * 4), "y": np.arange(4)}, "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_refused_with_a_sentence(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "public.npz", **arrays)
    with pytest.raises(DataError, match=says):
        load_public(PublicSection(str(tmp_path / "public.npz")), SPEC, seed=1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.npz cannot be read"):
        load_public(PublicSection(str(tmp_path / "none.npz")), SPEC, seed=1)


def test_a_method_without_the_examples_it_needs_says_how_to_give_some() -> None:
    assert load_public(PublicSection(), SPEC, seed=1) is None
    with pytest.raises(ConfigError, match=r"fedmd needs examples.*public\.file"):
        need_public(None, "fedmd")


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "few-classes"])
def test_reserved_rows_belong_to_no_device(partition: str) -> None:
    dealt = deal(SimulateSection(devices=8, partition=partition), seed=3)  # type: ignore[arg-type]
    left, public = reserve(dealt, PublicSection(rows=200), seed=3)
    assert public is not None
    assert public.y is not None
    assert len(public) == 200
    before = sum(len(share.train) for share in dealt.shares.values())
    assert sum(len(share.train) for share in left.shares.values()) == before - 200
    held = {dealt.x[row].tobytes() for share in left.shares.values() for row in (*share.train, *share.test)}
    # The digits hold a few images twice.
    assert sum(image.tobytes() in held for image in public.x) <= 2


def test_more_rows_than_there_are_cannot_be_reserved() -> None:
    dealt = deal(SimulateSection(devices=8), seed=3)
    with pytest.raises(ConfigError, match=r"public\.rows is 5000 but the devices have"):
        reserve(dealt, PublicSection(rows=5000), seed=3)
    assert reserve(dealt, PublicSection(), seed=3) == (dealt, None)


def save_named(folder: Path, names: list[str]) -> PublicSection:
    np.savez(folder / "public.npz", x=np.zeros((3, 1, 8, 8), np.float32), y=[0, 1, 1], classes=names)
    return PublicSection(str(folder / "public.npz"))


def test_named_labels_are_put_into_the_classes_of_the_run(tmp_path: Path) -> None:
    names = ("ant", "cat", "dog")
    found = load_public(save_named(tmp_path, ["dog", "ant"]), SPEC, seed=1, class_names=names)
    assert found is not None
    assert found.y is not None
    assert found.y.tolist() == [2, 0, 0]
    with pytest.raises(DataError, match="public data does not suit the run: the class 'wolf' is none of"):
        load_public(save_named(tmp_path, ["dog", "wolf"]), SPEC, seed=1, class_names=names)
    with pytest.raises(DataError, match="names its classes but those of the run are numbers"):
        load_public(save_named(tmp_path, ["dog", "ant"]), SPEC, seed=1)
    with pytest.raises(DataError, match="label 1 has no name among its 1 classes"):
        load_public(save_named(tmp_path, ["dog"]), SPEC, seed=1, class_names=names)


def test_public_examples_have_the_type_that_the_model_takes() -> None:
    whole = PublicData(np.array([[1, 2]]), None)
    assert as_dtype(whole, "int64") is whole
    made = as_dtype(whole, "float32")
    assert made is not None
    assert made.x.dtype == np.float32
    with pytest.raises(DataError, match="public data has fractions but the model takes whole numbers"):
        as_dtype(made, "int64")


def test_a_named_set_needs_no_file_and_no_device_holds_any_of_it() -> None:
    section = PublicSection(data="digits:holdout", rows=100)
    found = load_public(section, SPEC, seed=1)
    assert found is not None
    assert found.y is not None
    assert len(found) == 100
    assert set(found.y.tolist()) == set(range(10))

    dealt, reserved = reserve(deal(SimulateSection(devices=4), seed=1, public=section), section, seed=1)

    assert reserved is None
    held = {image.tobytes() for image in dealt.x}
    assert not any(image.tobytes() in held for image in found.x)
    assert len(dealt.x) == 1438


def test_a_named_set_without_labels() -> None:
    found = load_public(PublicSection(data="digits:holdout", labelled=False), SPEC, seed=1)
    assert found is not None
    assert (len(found), found.y) == (359, None)


def test_a_named_set_leaves_other_data_sets_whole() -> None:
    section = PublicSection(rows=10)
    assert len(deal(SimulateSection(devices=4), seed=1, public=section).x) == 1797


def test_a_named_set_for_devices_with_other_data_is_refused() -> None:
    with pytest.raises(DataError, match=r"shape \[1, 8, 8\] but the model takes \[1, 28, 28\].*set public\.file"):
        load_public(PublicSection(data="digits:holdout"), ModelSpec("lenet", (1, 28, 28), 10), seed=1)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"data": "mnist:holdout"}, r"data is 'mnist:holdout' but the sets without a file are digits:holdout"),
        ({"data": "digits:holdout", "file": "x.npz"}, r"file and data are both given; keep one"),
    ],
)
def test_a_public_section_that_cannot_be(section: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=r"\[public\] " + sentence):
        config_from_dict({"method": {"name": "fedmd"}, "public": section}, where="test")
