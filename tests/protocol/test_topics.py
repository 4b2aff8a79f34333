"""Names are matched whole: nothing that ends in a line break or leads out of a folder is one."""

from typing import Any

import msgspec
import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.field_types import Id
from fedwright.protocol.messages import Lost
from fedwright.protocol.topics import check_name

BAD = ["", ".", "..", "pi\n", "\npi", "a/b", "../x", "pi 1", "x" * 65, "pi\0", "ä"]


@pytest.mark.parametrize("name", ["pi-01", "a", "run.simulated", "..x", "x" * 64, "..."])
def test_a_name_is_taken_as_it_is(name: Any) -> None:
    assert check_name(name, what="device") == name
    assert msgspec.convert(name, Id) == name


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"device .* must be 1 to 64 of the characters"):
        check_name(name, what="device")


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_what_is_no_name_does_not_come_over_the_wire(name: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Id)


@pytest.mark.parametrize("name", ["0" * 64 + "\n", "0" * 63, "../" + "0" * 61, "G" * 64], ids=repr)
def test_what_is_no_name_of_a_blob_does_not_come_over_the_wire(name: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "lost", "sha256": name}, Lost)
