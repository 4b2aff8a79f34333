"""Data sets from outside: what their function is given, what it may return, and what is told of the rest."""

from pathlib import Path

import numpy as np
import pytest

from fedwright.protocol.errors import ConfigError, FedwrightError
from fedwright.server_runtime.config_sections.simulate import SimulateSection
from fedwright.simulation.datasets import Limit, load, offered
from fedwright.simulation.dealing import deal
from helpers.outside_package import example, installed

__all__ = ["example", "installed"]

BY_PLACE = "python:my_package.rings:load"
BAD = """
from dataclasses import replace
from my_package import rings

whole = rings.load(None, None)
number = 3
def nothing(limit, progress): return None
def unlabelled(limit, progress): return replace(whole, y_train=whole.y_train[1:])
def fractions(limit, progress): return replace(whole, y_test=whole.y_test / 2)
def infinite(limit, progress): return replace(whole, x_test=whole.x_test / 0)
def other_shape(limit, progress): return replace(whole, x_test=whole.x_test[:, :1])
def unnamed(limit, progress): return replace(whole, classes=("inner", "middle"))
def unowned(limit, progress): return replace(whole, owner_test=whole.y_test[1:])
"""


@pytest.mark.parametrize("name", ["rings", BY_PLACE])
def test_a_data_set_is_checked_and_cut_to_the_limit(example: Path, name: str) -> None:
    whole, part = load(name), load(name, limit=Limit(train=50, test=10))

    assert (len(whole.y_train), len(whole.y_test), whole.input_shape) == (700, 200, (2,))
    assert whole.x_train.dtype == np.float32
    assert (len(part.x_train), len(part.y_train), len(part.x_test), len(part.y_test)) == (50, 50, 10, 10)
    np.testing.assert_array_equal(part.x_train, whole.x_train[:50])


def test_it_is_dealt_out_like_one_of_ours(example: Path) -> None:
    dealt = deal(SimulateSection(dataset="rings", devices=4, rows=200), seed=1)

    assert (dealt.classes, len(dealt.shares), len(dealt.y)) == (3, 4, 240)


def test_an_unknown_data_set_is_told_those_of_packages_too(example: Path) -> None:
    assert [plugin.name for plugin in offered()] == ["rings"]
    with pytest.raises(ConfigError, match=r"unknown data set 'ring'; did you mean 'rings'\?"):
        load("ring")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("number", "it is a int; it must be a function of limit and progress"),
        ("nothing", "returned a NoneType; it must return a fedwright.simulation.datasets.DataSet"),
        ("unlabelled", r"x_train has shape \[700, 2\] and y_train \[699\] of type int64; give one whole number"),
        ("fractions", r"y_test \[200\] of type float64; give one whole number"),
        ("infinite", "x_test is not all finite numbers"),
        ("other_shape", r"examples of x_test have shape \[1\], not \[2\]"),
        ("unnamed", "y_train has labels outside 0 … 1; name all of its classes"),
        ("unowned", r"owner_test has shape \[199\]; give one owner for each example"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_is_no_data_set_is_refused(example: Path, function: str, said: str) -> None:
    (example / "bad_sets.py").write_text(BAD)

    with pytest.raises(FedwrightError, match=said):
        load(f"python:bad_sets:{function}")


def test_a_data_set_that_is_not_there_says_where_it_was_looked_for(installed: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no module 'my_sets' in this folder, {Path.cwd()}"):
        load("python:my_sets:load")
