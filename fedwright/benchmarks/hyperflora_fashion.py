"""The suite hyperflora-fashion: HyperFLoRA, its variants and its controls, on participants and bystanders."""

import argparse
from collections.abc import Mapping
from typing import Any

from fedwright.benchmarks.framp_fashion import Runs, finished_runs, late, unseen_devices
from fedwright.benchmarks.suite import Finished, check, mean, read_suite, seeds_of
from fedwright.server_runtime.artifacts.structure import ModelSpec
from fedwright.server_runtime.blocks.lora import round_values
from fedwright.server_runtime.methods.sliced import count_params

BASE, CLASSES = ModelSpec("lenet-valid", (1, 28, 28), 10), 10
ADAPTED = ModelSpec("lenet-lora", (1, 28, 28), 10, (("rank", 1),))


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tables and checks of the suite."""
    found = read_suite("hyperflora-fashion", quick=args.quick)
    suite, seeds = found["suite"], seeds_of(found["suite"], args.seeds)
    found["rounds"] = {"pretrain": suite["pretrain_rounds"]}
    for label, params in found["params"].items():
        if params.get("name", label) == "hyperflora":
            params["pretrain_rounds"] = suite["pretrain_rounds"]
    runs = finished_runs(found, seeds)
    unseen = unseen_devices(suite)
    return {
        "seeds": seeds,
        "tables": {
            "accuracy in percent, mean of the last measurements": [
                _row(label, own, unseen, found["paper"]) for label, own in runs.items()
            ],
            "numbers on the wire per round": [traffic(suite["per_round"], found["params"]["hyperflora"])],
        },
        "checks": checks(runs, unseen, traffic(suite["per_round"], found["params"]["hyperflora"])),
    }


def _row(label: str, own: list[Finished], unseen: int, paper: Mapping[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": label,
        "bystanders": mean(late(job, lambda number: number >= unseen) for job in own),
        "participants": mean(late(job, lambda number: number < unseen) for job in own),
    }
    row["paper bystanders"], row["paper participants"] = paper.get(label, [0.0, 0.0])
    return row


def traffic(selected: int, params: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers in one adapter round by the paper's formula, and in one FedAvg round."""
    adapter = count_params(ADAPTED) - count_params(BASE)
    numbers = round_values(
        selected=selected, pairs=selected // 2, exchanges=params["exchanges"], classes=CLASSES, adapter=adapter
    )
    fedavg = 2 * selected * count_params(BASE)
    return {"hyperflora": numbers, "fedavg": fedavg, "ratio": fedavg / numbers}


def checks(runs: Runs, unseen: int, wire: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Far above the base on bystanders; far less traffic; what is only reported has no target to miss."""

    def ahead(one: str, other: str) -> float:
        pairs = zip(runs[one], runs[other], strict=True)
        return mean(late(a, lambda n: n >= unseen) - late(b, lambda n: n >= unseen) for a, b in pairs)

    gain = ahead("hyperflora", "pretrain")
    found = [
        check("hyperflora - pretrain on bystanders, points", gain, ">= 10", holds=gain >= 10),
        check("fedavg's numbers per round over hyperflora's", wire["ratio"], ">= 10", holds=wire["ratio"] >= 10),
    ]
    for other in ("pfedhn", "fedavg-masked"):
        value = ahead("hyperflora", other)
        found.append(check(f"hyperflora - {other} on bystanders, points", value, "reported", holds=True))
    return found
