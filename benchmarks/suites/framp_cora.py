"""The suite framp-cora: FRAMP, FIARSE, HeteroFL and FedRolex on pieces of a citation graph, at four sizes."""

import argparse
from typing import Any

from fedwright.benchmarks.harness.suite import check, mean, read_suite, run_jobs, seeds_of
from fedwright.benchmarks.suites.framp_fashion import ahead, jobs_of, row_of, signs, unseen_devices


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    found = read_suite("framp-cora", quick=args.quick)
    suite, seeds = found["suite"], seeds_of(found["suite"], args.seeds)
    done = run_jobs(jobs_of(found, seeds))
    runs = {label: [job for job in done if job.name == label] for label in found["params"]}
    shares, unseen = [float(share) for share in found["sizes"]["shares"]], unseen_devices(suite)
    rows = [row_of(label, own, shares, unseen) for label, own in runs.items()]
    for row in rows:
        row["paper local"], row["paper union"] = found["paper"][row["method"]]
    margins = {other: ahead(runs, other, lambda number: number < unseen) for other in runs if other != "framp"}
    return {
        "seeds": seeds,
        "tables": {
            "accuracy in percent, mean of the last measurements": rows,
            "framp - other in points, paired seeds": signs(runs, unseen),
        },
        "checks": [
            check(f"framp - {other}, local, points", mean(margin), "> 0", holds=mean(margin) > 0)
            for other, margin in margins.items()
        ],
    }
