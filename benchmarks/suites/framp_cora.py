"""The suite framp-cora: FRAMP, FIARSE, HeteroFL and FedRolex on pieces of a citation graph, at four sizes."""

import argparse
from typing import Any

from fedwright.benchmarks.harness.graph_rounds import Scale, play
from fedwright.benchmarks.harness.suite import Finished, check, mean, merged, read_suite, seeds_of
from fedwright.benchmarks.suites.framp_fashion import ahead, row_of, unseen_devices
from fedwright.server_runtime.config import config_from_dict

SCALE = ("devices", "bystanders", "per_round", "steps", "measure_every")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    found = read_suite("framp-cora", quick=args.quick)
    suite, seeds = found["suite"], seeds_of(found["suite"], args.seeds)
    scale, unseen = Scale(**{key: suite[key] for key in SCALE}), unseen_devices(found["suite"])
    runs: dict[str, list[Finished]] = {label: [] for label in found["params"]}
    for seed in seeds:
        for label, params in found["params"].items():
            own = {"method": {"name": label, **params}, "run": {"seed": seed, "rounds": suite["rounds"]}}
            config = config_from_dict(merged(found["config"], own), where=f"suite job {label}")
            runs[label].append(play(config, label, scale))
    shares = [float(share) for share in found["sizes"]["shares"]]
    rows = [row_of(label, own, shares, unseen) for label, own in runs.items()]
    for row in rows:
        row["paper local"], row["paper union"] = found["paper"][row["method"]]
    margins = {other: ahead(runs, other, lambda number: number < unseen) for other in runs if other != "framp"}
    return {
        "seeds": seeds,
        "tables": {"accuracy in percent, mean of the last measurements": rows},
        "checks": [
            check(f"framp - {other}, local, points", mean(margin), "> 0", holds=mean(margin) > 0)
            for other, margin in margins.items()
        ],
    }
