"""More than one machine: shared stores, kills of the leading server, edges that shard a fleet, very many devices, Ray.

Each part is a function that gives tables, checks and notes; engines start by themselves.
"""

import argparse
from typing import Any

from fedwright.benchmarks.harness.drawn_fleet import drawn
from fedwright.benchmarks.harness.edge_intake import intake
from fedwright.benchmarks.harness.ray_speed import ray_speed
from fedwright.benchmarks.harness.shared_stores import overhead
from fedwright.benchmarks.harness.take_over import take_overs


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all parts, one after the other; `--kills` says how many of them."""
    found = [
        overhead(quick=args.quick),
        drawn(quick=args.quick),
        ray_speed(quick=args.quick),
        intake(quick=args.quick),
        take_overs(quick=args.quick, kills=args.kills),
    ]
    return {
        "tables": {name: rows for part in found for name, rows in part["tables"].items()},
        "checks": [check for part in found for check in part["checks"]],
        "notes": [note for part in found for note in part["notes"]],
    }
