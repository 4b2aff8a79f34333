"""What `init` prints learns something as it is, and does what its method is about."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fedwright.cli.main import main
from fedwright.protocol.link.memory import MemoryBroker
from fedwright.server_runtime import run as runs
from fedwright.server_runtime.config import RunConfig, load_config
from fedwright.server_runtime.methods.base import Assignment
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.simulation.dealing import deal
from fedwright.simulation.simulate import make_reports, simulate
from helpers.simulation import local_data, run_agents

CLASSES = 10
LEAST = 3 / CLASSES


@dataclass(frozen=True)
class Ended:
    """A run at its end: its method, the round that it would plan next, and what the server measured in each round."""

    method: Any
    plans: Mapping[str, Assignment]
    metrics: list[dict[str, float]]

    def ever(self, name: str) -> float:
        """The largest value of a metric."""
        return max(row[name] for row in self.metrics)

    @property
    def models(self) -> int:
        """How many different models, or sizes of one, the devices train."""
        return len({plan.structure.spec for plan in self.plans.values()})

    @property
    def marks(self) -> int:
        """How many different notes the plans carry."""
        return len({plan.marks for plan in self.plans.values()})

    def objectives(self, name: str) -> list[Any]:
        """A term of every device's loss."""
        return [getattr(plan.structure.objective, name) for plan in self.plans.values()]


REACHED: dict[str, Callable[[Ended], bool]] = {
    "adapters-private": lambda end: end.ever("adapters") == len(end.plans),
    "encoder-private": lambda end: all("head.weight" not in plan.returns.personal for plan in end.plans.values()),
    "fccl": lambda end: all(end.objectives("correlate")) and end.ever("consensus_moved") > 0,
    "fedadam": lambda end: end.models == 1 and min(v.min() for v in end.method._second.values()) >= 0,
    "fedavg": lambda end: end.models == 1 and end.marks == 1,
    "fedavg-masked": lambda end: len({str(end.method.model_of(d)[1]["head.bias"]) for d in end.plans}) > 1,
    "fedavgm": lambda end: any(value.any() for value in end.method._velocity.values()),
    "fedbn": lambda end: all("encoder.conv1.1.bias" in plan.returns.personal for plan in end.plans.values()),
    "fedconv": lambda end: end.models == 4 and end.ever("tuned") > 0,
    "feddropout": lambda end: end.marks == len(end.plans) and end.plans["device-0"].structure.spec.sizes != (),
    "fedgh": lambda end: end.models == 3 and end.metrics[-1]["head_loss"] < end.metrics[0]["head_loss"],
    "fedkemf": lambda end: any(end.objectives("distill")) and end.ever("fusion_loss") > 0,
    "fedmd": lambda end: all(end.objectives("match_logits")) and end.ever("consensus_moved") > 0,
    "fedprox": lambda end: all(end.objectives("proximal")),
    "fedrolex": lambda end: end.models > 2 and end.plans["device-0"].marks == (NEXT - 1,),
    "fedyogi": lambda end: any(value.any() for value in end.method._first.values()),
    "fiarse": lambda end: all(end.objectives("fiarse")) and end.marks == 4,
    "flexifed": lambda end: end.models == 2 and end.ever("tensors_averaged") > 0,
    "framp": lambda end: end.ever("hypernet_gradient") > 0 and end.ever("prototypes_moved") > 0,
    "hasa": lambda end: end.models > 2 and end.metrics[-1]["budget"] == pytest.approx(0.5, abs=0.05),
    "head-private": lambda end: all("head.weight" in plan.returns.personal for plan in end.plans.values()),
    "hermes": lambda end: end.plans["device-0"].structure.spec.sizes != () and end.metrics[-1]["density"] < 1,
    "heterofl": lambda end: end.models == 3 and all(end.objectives("masked_classes")),
    "hyperflora": lambda end: end.ever("adapters") > len(end.plans) and end.ever("hypernet_gradient") > 0,
    "lotteryfl": lambda end: end.metrics[-1]["density"] < 1 and any(p.returns.masked for p in end.plans.values()),
    "per-fedavg": lambda end: all(end.objectives("meta_rate")),
    "pfedclub": lambda end: end.models == 3 and end.ever("teachers") > 5 and any(end.objectives("distill")),
    "pfedhn": lambda end: end.ever("hypernet_gradient") > 0,
    "pfedhr": lambda end: end.models == 3 and end.ever("teachers") > 5 and any(end.objectives("distill")),
    "pfedme": lambda end: all(end.objectives("envelope")),
    "scaffold": lambda end: any(value.any() for value in end.method._common.values()),
    "scalefl": lambda end: end.models == 3 and any(end.objectives("exit_distill")),
    "slice-tuned": lambda end: end.models == 4 and end.ever("tuned") > 0,
    "standalone": lambda end: len({str(end.method.model_of(d)[1]["head.bias"]) for d in end.plans}) == len(end.plans),
    "tailorfl": lambda end: end.models == 3 and end.marks > 3,
}
# Any round behind the last one.
NEXT = 99


def starter(method: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[RunConfig, str]:
    """What `init` prints for a method."""
    assert main(["init", method]) == 0
    path = folder / "run.toml"
    path.write_text(capsys.readouterr().out)
    return load_config(path), path.read_text()


def test_every_method_has_a_stage_to_reach() -> None:
    assert REACHED.keys() == METHODS.keys()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_starter_config_simulated(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config, text = starter(name, tmp_path, capsys)
    seen: list[Any] = []
    # Only where the work is done differs: processes give the same bytes but take longer to start than this takes.
    alone = replace(config, simulate=replace(config.simulate, processes=0))

    found = simulate(alone, text, look=lambda method, _: seen.append(method))

    last = found.evaluations[-1].devices
    accuracy = sum(device.correct for device in last) / sum(device.n for device in last)
    assert accuracy > LEAST
    reports = make_reports(config, deal(config.simulate, seed=config.run.seed, public=config.public))
    end = Ended(seen[-1], seen[-1].assign(reports, NEXT), found.outcome.metrics)
    assert REACHED[name](end), (end.metrics[-1], end.models, end.marks)


@pytest.mark.parametrize(("name", "stage"), [("hyperflora", "adapters"), ("fedmd", "consensus_moved")])
def test_a_starter_config_served(
    name: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config, text = starter(name, tmp_path, capsys)
    shares = replace(config.simulate, devices=3, partition="iid")
    data = local_data(deal(shares, seed=1, public=config.public))
    broker = MemoryBroker()

    with run_agents(broker, tmp_path / "devices", data, fleets=dict.fromkeys(data, config.fleet.name)):
        link = broker.link("server")
        # It begins with two devices; the third may come when it likes.
        outcome = runs.execute(config, text, link=link)
        link.close()

    assert outcome.metrics[-1]["accuracy_after"] > LEAST
    assert max(row[stage] for row in outcome.metrics) > 0
