"""What a device keeps of its sums outlives a power cut in the middle of a write."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fedwright.device_runtime.secure.kept import Change, KeptChange
from fedwright.protocol.messages import Effort, SumTerms


def kept_in(folder: Path) -> KeptChange:
    kept = KeptChange(folder)
    row = folder / "result"
    np.zeros(3, "<f4").tofile(row)
    kept.put(Change("t", SumTerms("g", 3, 1.0, Effort(8)), b"", 1, 1024), row)
    return kept


@pytest.mark.parametrize("lost", [1, 5, 30])
def test_a_write_that_was_cut_off_leaves_what_was_told_before(tmp_path: Path, lost: int) -> None:
    kept = kept_in(tmp_path)
    first = kept.begin(kept.of("t"), "one")
    kept.save(kept.of("t"), structs.replace(first, roster=b"told"))
    whole = (tmp_path / "sums" / "state").read_bytes()
    kept.save(kept.of("t"), structs.replace(first, roster=b"told", sharers=["a"] * 20))
    file = tmp_path / "sums" / "state"
    file.write_bytes(file.read_bytes()[:-lost])

    again = KeptChange(tmp_path)
    assert again.of("t").sessions["one"] == structs.replace(first, roster=b"told")
    again.save(again.of("t"), structs.replace(first, roster=b"told", sharers=["b"]))
    assert file.read_bytes()[: len(whole)] == whole
    assert KeptChange(tmp_path).of("t").sessions["one"].sharers == ["b"]


def test_a_file_of_something_else_is_nothing_that_may_be_told(tmp_path: Path) -> None:
    kept_in(tmp_path)
    (tmp_path / "sums" / "state").write_bytes(b"\xff" * 100)

    assert not KeptChange(tmp_path).has("t")
