"""The strict loader: what it accepts, and that each mistake is one sentence that names the key."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.settings import check_range, from_dict, hint


@dataclass(frozen=True)
class Inner:
    size: int = 3

    def __post_init__(self) -> None:
        check_range("size", self.size, low=1, high=9)


@dataclass(frozen=True)
class Outer:
    name: str
    rate: float = 0.5
    count: int = 1
    on: bool = False
    kind: Literal["sgd", "adam", 3] = "sgd"
    shape: tuple[int, ...] = ()
    pair: tuple[str, float] = ("a", 1.0)
    words: list[str] = field(default_factory=list)
    table: dict[str, float] = field(default_factory=dict)
    limit: float | None = None
    either: int | str = 1
    inner: Inner = field(default_factory=Inner)


def test_a_full_table_becomes_the_dataclass() -> None:
    data = {
        "name": "n",
        "rate": 2,
        "count": 4,
        "on": True,
        "kind": "adam",
        "shape": [1, 8, 8],
        "pair": ["b", 2],
        "words": ["x"],
        "table": {"k": 1},
        "limit": 3,
        "either": "text",
        "inner": {"size": 5},
    }

    made = from_dict(Outer, data, where="f.toml")

    assert made == Outer(
        name="n",
        rate=2.0,
        count=4,
        on=True,
        kind="adam",
        shape=(1, 8, 8),
        pair=("b", 2.0),
        words=["x"],
        table={"k": 1.0},
        limit=3.0,
        either="text",
        inner=Inner(5),
    )
    assert type(made.rate) is float


def test_defaults_fill_what_is_absent() -> None:
    assert from_dict(Outer, {"name": "n"}, where="f.toml") == Outer(name="n")


@dataclass(frozen=True)
class Renamed:
    size: int = field(default=1, metadata=hint("how large", was="width"))


def test_a_key_of_an_earlier_release_still_counts() -> None:
    assert from_dict(Renamed, {"width": 3}, where="f.toml") == Renamed(3)
    with pytest.raises(ConfigError, match="unknown key 'width'"):
        from_dict(Renamed, {"width": 3, "size": 4}, where="f.toml")


MISTAKES: dict[str, tuple[Any, str]] = {
    "not a table": (3, "f.toml must be a table of settings, not 3"),
    "unknown key": ({"name": "n", "zzz": 1}, "f.toml has the unknown key 'zzz'; valid are count, "),
    "near key": ({"nam": "n"}, "f.toml has the unknown key 'nam'; did you mean 'name'? valid are"),
    "missing key": ({}, "f.toml lacks the key 'name'; add it (a text)"),
    "text for number": ({"name": "n", "rate": "fast"}, "f.toml rate is 'fast' but must be a number"),
    "float for int": ({"name": "n", "count": 1.5}, "f.toml count is 1.5 but must be a whole number"),
    "bool for int": ({"name": "n", "count": True}, "f.toml count is true but must be a whole number"),
    "bool for float": ({"name": "n", "rate": False}, "f.toml rate is false but must be a number"),
    "number for bool": ({"name": "n", "on": 1}, "f.toml on is 1 but must be true or false"),
    "number for text": ({"name": 7}, "f.toml name is 7 but must be a text"),
    "wrong choice": ({"name": "n", "kind": "sdg"}, "f.toml kind is 'sdg'; did you mean 'sgd'? valid are 3, adam, sgd"),
    "text for list": ({"name": "n", "shape": "8x8"}, "f.toml shape is '8x8' but must be a list of whole numbers"),
    "bad list entry": ({"name": "n", "shape": [8, "8"]}, "f.toml shape[1] is '8' but must be a whole number"),
    "short pair": ({"name": "n", "pair": ["a"]}, "f.toml pair has 1 entries but must have 2"),
    "bad word": ({"name": "n", "words": [1]}, "f.toml words[0] is 1 but must be a text"),
    "bad table value": ({"name": "n", "table": {"k": "v"}}, "f.toml table.k is 'v' but must be a number"),
    "long pair": ({"name": "n", "pair": ["a", 1, 2]}, "f.toml pair has 3 entries but must have 2"),
    "list for table": ({"name": "n", "table": [1]}, "f.toml table is the list [1] but must be a table"),
    "optional of wrong type": ({"name": "n", "limit": "x"}, "f.toml limit is 'x' but must be a number"),
    "neither of a union": ({"name": "n", "either": 1.5}, "f.toml either is 1.5 but must be a whole number or a text"),
    "number for section": ({"name": "n", "inner": 1}, "f.toml inner must be a table of settings, not 1"),
    "nested unknown": ({"name": "n", "inner": {"sise": 1}}, "f.toml inner has the unknown key 'sise'; did you mean"),
    "nested impossible": (
        {"name": "n", "inner": {"size": 0}},
        "f.toml inner size is 0 but must be at least 1 and at most 9",
    ),
}


@pytest.mark.parametrize(("data", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_sentence_that_names_the_key(data: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(Outer, data, where="f.toml")

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        pytest.param({"low": 0}, 0.0, -0.1, id="low is allowed itself"),
        pytest.param({"high": 1}, 1.0, 1.1, id="high is allowed itself"),
        pytest.param({"above": 0}, 0.1, 0.0, id="above is not allowed itself"),
        pytest.param({"low": 0}, 1.0, float("nan"), id="not a number"),
    ],
)
def test_ranges(bounds: dict[str, float], good: float, bad: float) -> None:
    check_range("key", good, **bounds)
    with pytest.raises(ConfigError, match=r"^key is .* but must be "):
        check_range("key", bad, **bounds)
