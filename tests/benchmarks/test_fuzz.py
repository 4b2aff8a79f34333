"""`bench fuzz` draws the same examples again, and sees what a decoder must not do."""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fedwright.benchmarks.harness.decoders import DECODERS, Decoder
from fedwright.benchmarks.harness.mutations import MOST_BYTES, mutated
from fedwright.benchmarks.processes import fuzz_part
from fedwright.benchmarks.suites import fuzz
from fedwright.benchmarks.suites.fuzz import recorded, run, write_examples
from fedwright.protocol.errors import BadMessage, ConfigError

SEEDS = [b"a valid example", b"another 12"]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the valid examples of every decoder."""
    folder = tmp_path_factory.mktemp("examples")
    write_examples(folder, list(DECODERS))
    return folder


def test_examples_are_drawn_by_their_seed_and_differ_from_the_valid_ones() -> None:
    drawn = [[mutated(SEEDS, random.Random(seed)) for seed in range(300)] for _ in range(2)]

    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 250
    assert max(map(len, drawn[0])) <= MOST_BYTES


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_valid_examples_are_accepted_and_changed_ones_refused_by_type(name: str, examples: Path) -> None:
    decoder = DECODERS[name]
    valid = decoder.valid(random.Random(f"valid {name}"))
    read, found, rng = decoder.reader(examples), fuzz_part.PartFound(), random.Random(1)
    for example in valid:
        fuzz_part.attempt(read, example, decoder.errors, found)
    accepted = found.accepted
    for _ in range(200):
        fuzz_part.attempt(read, mutated(valid, rng), decoder.errors, found)

    assert accepted > 0
    assert (found.faults, found.shown) == (0, [])


def test_an_error_of_another_kind_is_a_fault() -> None:
    def read(data: bytes) -> None:
        if b"x" in data:
            raise BadMessage("known")
        raise KeyError("unknown")

    found = fuzz_part.PartFound()
    for example in (b"x", b"y"):
        fuzz_part.attempt(read, example, Decoder(lambda rng: [], lambda folder: read, (BadMessage,)).errors, found)

    assert (found.examples, found.accepted, found.faults) == (2, 0, 1)
    assert found.shown == ["KeyError: 'unknown' from 79 (1 bytes)"]


def test_a_part_is_a_process_of_its_own(examples: Path, tmp_path: Path) -> None:
    words = ["-m", fuzz_part.__name__, "message", "1", "500", str(examples), str(tmp_path)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)

    found = json.loads(done.stdout)
    assert (found["examples"], found["faults"]) == (500, 0)


def result_file(folder: Path) -> Path:
    """What was recorded of two decoders, one of them with a fault."""
    rows = [
        {"decoder": name, "examples": 100, "slowest s": 0.1, "faults": n} for n, name in enumerate(["order", "update"])
    ]
    faults = [{"decoder": "update", "fault": "Hung"}, {"decoder": "gone", "fault": "old"}]
    path = folder / "fuzz.json"
    path.write_text(json.dumps({"date": "2026-01-01", "tables": {"decoders": rows, "faults": faults}}))
    return path


def test_a_decoder_that_is_tried_again_takes_the_place_of_what_was_recorded_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "EXAMPLES", 100)
    args = argparse.Namespace(quick=False, decoders=["update"], json=result_file(tmp_path))

    found = run(args)

    rows = {row["decoder"]: row for row in found["tables"]["decoders"]}
    assert list(rows) == ["update", "order"]
    assert rows["order"]["date"] == "2026-01-01" < rows["update"]["date"]
    assert found["tables"]["faults"] == []
    assert len(found["checks"]) == 6
    assert all(check["holds"] for check in found["checks"])


@pytest.mark.parametrize("text", ["", "[]", '{"date": "x", "tables": {"rows": []}}'], ids=["empty", "list", "other"])
def test_a_file_of_another_kind_is_not_written_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ConfigError, match="is no result of this suite"):
        recorded(tmp_path / "other.json")


def test_a_decoder_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="there is no 'updat'; choose from message, "):
        run(argparse.Namespace(quick=True, decoders=["updat"], json=None))
