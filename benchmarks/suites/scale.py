"""More than one machine: what shared stores cost a round, and how long a run stands still when its server is killed.

Each part is a function that takes `quick` and gives tables, checks and notes; engines start by themselves.
"""

import argparse
from collections.abc import Callable
from typing import Any

from fedwright.benchmarks.harness.edge_intake import intake
from fedwright.benchmarks.harness.shared_stores import overhead
from fedwright.benchmarks.harness.take_over import take_overs

Part = Callable[..., dict[str, Any]]
PARTS: tuple[Part, ...] = (overhead, take_overs, intake)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all parts, one after the other."""
    found = [part(quick=args.quick) for part in PARTS]
    return {
        "tables": {name: rows for part in found for name, rows in part["tables"].items()},
        "checks": [check for part in found for check in part["checks"]],
        "notes": [note for part in found for note in part["notes"]],
    }
