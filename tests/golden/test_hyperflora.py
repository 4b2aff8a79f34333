"""HyperFLoRA's own sizes: adapters, hypernetworks, numbers per round."""

from typing import Any

import numpy as np
import pytest

from fedwright.protocol.messages import DataSummary, Stats
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.blocks.lora import round_values
from fedwright.server_runtime.methods.base import CheckedUpdate
from fedwright.server_runtime.methods.baselines.pfedhn import PFedHN
from fedwright.server_runtime.methods.hyperflora import HyperFLoRA
from fedwright.server_runtime.methods.params.generated_models import HyperFLoRAParams, PFedHNParams
from fedwright.server_runtime.spec import ModelSpec
from helpers.fleet import report, setting

STATS = Stats(samples=10, steps=1, train_s=0.1, cpu_s=0.1, peak_rss_bytes=1)
VIT10, VIT100 = ModelSpec("vit-lora", (3, 32, 32), 10), ModelSpec("vit-lora", (3, 32, 32), 100)
LENET = ModelSpec("lenet-lora", (3, 32, 32), 10)
IDS = ["vit-10", "vit-100", "lenet"]


def make(spec: ModelSpec, **changes: Any) -> HyperFLoRA:
    initial = initial_weights(zoo.create(spec, seed=0))
    params = HyperFLoRAParams(**{"pretrain_rounds": 0, **changes})
    return HyperFLoRA(params, setting(spec=spec, initial=initial))


@pytest.mark.parametrize(
    ("spec", "adapter", "hypernet"),
    [(VIT10, 2122, 308_170), (VIT100, 2212, 331_300), (LENET, 850, 144_082)],
    ids=IDS,
)
def test_sizes_of_adapters_and_hypernetworks(spec: ModelSpec, adapter: int, hypernet: int) -> None:
    net = make(spec)._net()
    assert (net.outputs, net.parameters) == (adapter, hypernet)


def test_a_head_that_is_written_whole_has_no_adapter() -> None:
    """Printed as 2.70E3; with the head's adapter it would be 2,772."""
    method = make(VIT10, head=True)
    assert method._net().outputs == 16 * 128 + 64 * 10 + 10 == 2698
    reports = {"a": report(data=DataSummary(24, 8, [3, 32, 32], 10, class_counts=[1] * 10))}
    emission = method.emit("a", method.assign(reports, 1)["a"])
    assert sum(value.size for value in emission.weights.values()) == 2698


@pytest.mark.parametrize(("model", "published"), [("lenet-valid", 8.30e6), ("vit-tiny", 2.69e7)], ids=["lenet", "vit"])
def test_a_hypernetwork_for_all_weights_is_far_larger(model: str, published: float) -> None:
    spec = ModelSpec(model, (3, 32, 32), 10)
    params = PFedHNParams(hidden=128, layers=3)
    method = PFedHN(params, setting(spec=spec, initial=initial_weights(zoo.create(spec, seed=0))))
    assert f"{method.hypernet.parameters:.2e}" == f"{published:.2e}"


@pytest.mark.parametrize(
    ("spec", "pairs", "published"),
    [(VIT10, 4, 1.36e5), (VIT100, 4, 1.43e5), (LENET, 4, 5.46e4), (VIT10, 0, 3.40e4)],
    ids=[*IDS, "without pairs"],
)
def test_numbers_per_round(spec: ModelSpec, pairs: int, published: float) -> None:
    adapter = make(spec)._net().outputs
    found = round_values(selected=8, pairs=pairs, exchanges=3, classes=spec.classes, adapter=adapter)
    assert f"{found:.2e}" == f"{published:.2e}"


def test_a_round_moves_as_many_numbers_as_the_formula_says() -> None:
    method = make(LENET)
    counts = [1] * 10
    reports = {f"d{n}": report(data=DataSummary(24, 8, [3, 32, 32], 10, class_counts=counts)) for n in range(8)}
    stage, moved = method.assign(reports, 1), 2 * 8 * 10
    while stage:
        relays = []
        for device, assignment in sorted(stage.items()):
            weights = method.emit(device, assignment).weights
            moved += 2 * sum(value.size for value in weights.values())
            sent = {name: np.zeros_like(value) for name, value in weights.items()}
            relays.append(method.absorb(device, CheckedUpdate(sent, STATS, assignment)))
        stage = {relay.device: relay.assignment for relay in relays if relay is not None}
    assert moved == round_values(selected=8, pairs=4, exchanges=3, classes=10, adapter=850) == 54_560


def test_a_round_is_less_than_a_tenth_of_fedavgs() -> None:
    assert 10 * 54_560 < 2 * 8 * 64_102
