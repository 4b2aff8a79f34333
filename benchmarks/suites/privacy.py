"""The suite privacy: what hiding samples, devices and updates costs, and whether attacks fail where they should."""

import argparse
from typing import Any

from fedwright.benchmarks.harness.suite import read_suite, seeds_of
from fedwright.benchmarks.suites.privacy_attacks import attack_tables
from fedwright.benchmarks.suites.privacy_noise import accuracy_tables
from fedwright.benchmarks.suites.privacy_steps import step_tables
from fedwright.benchmarks.suites.privacy_sums import sum_tables


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    found = read_suite("privacy", quick=args.quick)
    seeds = seeds_of(found["suite"], args.seeds)
    tables: dict[str, list[dict[str, Any]]] = {}
    checks: list[dict[str, Any]] = []
    models = found["suite"]["models"]
    for part in (accuracy_tables(found, seeds), attack_tables(seeds), sum_tables(seeds), step_tables(models)):
        tables |= part[0]
        checks += part[1]
    return {"seeds": seeds, "tables": tables, "checks": checks}
