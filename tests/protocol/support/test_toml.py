"""TOML that would take a reader long, and what is said of it."""

import time

import pytest
import tomllib

from fedwright.protocol.support.toml import MOST_PARTS, BadToml, read_toml


def test_tables_are_those_of_any_reader() -> None:
    text = '[run]\nname = "a.b.c"\nx.y."z w" = [1, 2.5]\n[[deep.down]]\nhere = true\n'
    assert read_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("part", ["a", '"a"', "'a b'", "a ", "a-b_1"])
@pytest.mark.parametrize("where", ["{}.b = 1", "[run]\n{}.b = 1", "[{}.b]", "x = {{{}.b = 1}}"])
def test_a_name_of_very_many_parts_is_refused_by_its_line(part: str, where: str) -> None:
    text = "\n" + where.format(".".join([part] * (MOST_PARTS + 1)))
    with pytest.raises(BadToml, match=f"more than {MOST_PARTS} names .* line {text.count(chr(10)) + 1}"):
        read_toml(text)
    read_toml("\n" + where.format(".".join([part] * (MOST_PARTS - 2))))


def test_five_thousand_parts_cost_no_more_than_as_many_lines() -> None:
    began_s = time.thread_time()
    read_toml("".join(f"a{number} = 1\n" for number in range(5000)))
    plain_s = time.thread_time() - began_s
    with pytest.raises(BadToml):
        read_toml("[fleet]\n" + "a." * 5000 + "a = 1")
    assert time.thread_time() - began_s - plain_s <= plain_s


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "Invalid value"),
        ("x = " + "1" * 9000, "digits"),
        ("x = " + "[" * 9000, "recursion"),
        ("x" * 5_000_000, "characters"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_error(text: str, said: str) -> None:
    with pytest.raises(BadToml, match=said):
        read_toml(text)
