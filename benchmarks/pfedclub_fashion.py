"""The suite pfedclub-fashion: unlike models that teach one another, in reduced zoos of the paper."""

import argparse
from typing import Any

from fedwright.benchmarks.club import run_suite


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    return run_suite("pfedclub-fashion", args)
