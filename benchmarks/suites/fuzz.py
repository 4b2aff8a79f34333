"""`fedwright bench fuzz`: nearly valid bytes against every decoder; each answers with its own errors, fast and small.

`make fuzz` runs it to its end: a million examples per decoder, in parts that are kept, so that a run that was stopped
goes on. `--decoders` picks some; of the others a result that `--json` names keeps what it says. Examples are drawn from
valid ones with bits turned, pieces cut, repeated and spliced, numbers and lengths that lie and nests that are too deep
(`mutations`). A fault is an error of another kind, more than 256 MiB above the valid examples' memory, or 20 seconds; a
part whose process dies is one too.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from fedwright.benchmarks.harness.decoders import ARTIFACT, DECODERS, example_artifact
from fedwright.benchmarks.harness.kept_jobs import place_named
from fedwright.benchmarks.processes.fuzz_part import PartFound
from fedwright.protocol.artifact import pack
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.files import replace_file
from fedwright.protocol.support.steps import steps

EXAMPLES = 1_000_000
PART = 50_000
QUICK_EXAMPLES = 2_000
MOST_S = 1.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All decoders or those that were asked for, part by part."""
    wanted = QUICK_EXAMPLES if args.quick else EXAMPLES
    names = _chosen(args.decoders)
    earlier = {} if args.quick or args.decoders is None else recorded(args.json)
    part = min(PART, wanted)
    found: dict[str, list[PartFound]] = {name: [] for name in names}
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="fedwright-fuzz-", dir=memory) as place,
        steps("examples, in parts", wanted // part * len(names)) as advance,
    ):
        folder = Path(place)
        write_examples(folder, names)
        jobs = [(name, seed) for seed in range(wanted // part) for name in names]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = pool.map(lambda job: _part(job[0], job[1], part, folder), jobs)
            for (name, _), one in zip(jobs, parts, strict=True):
                found[name].append(one)
                advance()
    fresh = {
        name: Recorded(_row(name, parts), [text for one in parts for text in one.shown])
        for name, parts in found.items()
    }
    return {"seeds": list(range(wanted // part)), **_result(earlier | fresh, wanted)}


class Recorded(msgspec.Struct):
    """What came of one decoder."""

    row: dict[str, Any]
    faults: list[str]


def recorded(path: Path | None) -> dict[str, Recorded]:
    """What a result file says of each decoder that there still is; ConfigError when it is of another suite."""
    if path is None or not path.exists():
        return {}
    try:
        result = json.loads(path.read_text())
        day, tables = result["date"], result["tables"]
        rows = {row["decoder"]: {"date": day} | row for row in tables["decoders"]}
        faults = [(each["decoder"], each["fault"]) for each in tables["faults"]]
    except (ValueError, LookupError, TypeError) as err:
        raise ConfigError(f"{path} is no result of this suite; give --json another file, or remove it") from err
    return {
        name: Recorded(rows[name], [fault for of, fault in faults if of == name]) for name in DECODERS if name in rows
    }


def _chosen(asked: list[str] | None) -> list[str]:
    unknown = sorted(set(asked or ()) - set(DECODERS))
    if unknown:
        raise ConfigError(f"--decoders: there is no {unknown[0]!r}; choose from {', '.join(DECODERS)}")
    return [name for name in DECODERS if asked is None or name in asked]


def _result(found: dict[str, Recorded], wanted: int) -> dict[str, Any]:
    """Tables and checks, in the order of the decoders."""
    names = [name for name in DECODERS if name in found]
    return {
        "tables": {
            "decoders": [found[name].row for name in names],
            "faults": [{"decoder": name, "fault": text} for name in names for text in found[name].faults],
        },
        "shown": ["decoders"],
        "checks": [check for name in names for check in _checks(found[name].row, wanted)],
    }


def write_examples(folder: Path, names: Sequence[str]) -> None:
    """The valid examples of decoders, for the processes that change them."""
    (folder / ARTIFACT).write_bytes(pack(example_artifact()))
    for name in names:
        valid = DECODERS[name].valid(random.Random(f"valid {name}"))
        (folder / f"{name}.valid").write_bytes(msgspec.msgpack.encode(valid))


def _part(name: str, seed: int, count: int, folder: Path) -> PartFound:
    """What came of some examples, or what is kept of it since an earlier start."""
    place = place_named(["fuzz", name, seed, count])
    if place is not None and place.exists():
        return msgspec.json.decode(place.read_bytes(), type=PartFound)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        words = [name, str(seed), str(count), str(folder), work]
        command = [sys.executable, "-m", "fedwright.benchmarks.processes.fuzz_part", *words]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        return PartFound(faults=1, shown=[f"part {seed} ended with code {done.returncode}: {last[0]}"])
    found = msgspec.json.decode(done.stdout.splitlines()[-1], type=PartFound)
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, msgspec.json.encode(found))
    return found


def _row(name: str, parts: list[PartFound]) -> dict[str, Any]:
    examples, seconds = sum(one.examples for one in parts), sum(one.seconds for one in parts)
    return {
        "decoder": name,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "examples": examples,
        "accepted": sum(one.accepted for one in parts),
        "per second": round(examples / seconds) if seconds else 0,
        "slowest s": round(max(one.slowest_s for one in parts), 4),
        "faults": sum(one.faults for one in parts),
    }


def _checks(row: dict[str, Any], wanted: int) -> list[dict[str, Any]]:
    name = row["decoder"]
    return [
        {
            "name": f"{name}: examples",
            "value": row["examples"],
            "target": wanted,
            "holds": row["examples"] >= wanted,
        },
        {"name": f"{name}: faults", "value": row["faults"], "target": 0, "holds": row["faults"] == 0},
        {
            "name": f"{name}: slowest example, s",
            "value": row["slowest s"],
            "target": f"<= {MOST_S:g}",
            "holds": row["slowest s"] <= MOST_S,
        },
    ]
