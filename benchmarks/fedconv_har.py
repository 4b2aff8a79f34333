"""The suite fedconv-har: FedConv beside its rivals on phone motion, one device per person."""

import argparse
from typing import Any

from fedwright.benchmarks.fedconv_fashion import run_suite


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    return run_suite("fedconv-har", args)
