"""What an agent costs before it does anything: processor time, memory, and nothing heavy imported."""

import json
import subprocess
import sys
from typing import Any

import pytest

# All packages of a device take this much of the agent's start already; the rest is ours.
CPU_RATIO = 2.2
RSS_OWN_BYTES = 6 * 1024**2
MODULES = 460
# An agent that has numpy in it takes 40.
IDLE_BYTES = 32 * 1024**2
HEAVY = {"torch", "onnx", "sklearn", "scipy", "rich", "matplotlib", "pandas", "PIL", "cryptography", "amqtt"}

PACKAGES = "import numpy, onnxruntime, paho.mqtt.client, msgspec, safetensors.numpy, psutil"
AGENT = """
import fedwright.device_runtime.training_process.child
import fedwright.device_runtime.train.portable
import fedwright.device_runtime.train.check
import fedwright.device_runtime.data
import fedwright.protocol.link.mqtt
"""
IDLE = """
import ssl
import fedwright.device_runtime.start
import fedwright.protocol.link.mqtt
from fedwright.device_runtime import facts
facts.board()
"""
SAY = """
import json, resource, sys
used = resource.getrusage(resource.RUSAGE_SELF)
(rss,) = (int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
facts = {"cpu_s": used.ru_utime + used.ru_stime, "rss": rss, "modules": sorted(sys.modules)}
print(json.dumps(facts))
"""


def start(program: str) -> dict[str, Any]:
    """What a fresh process that imports this has used."""
    done = subprocess.run([sys.executable, "-c", program + SAY], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def starts() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Agents, each beside a process that imports the same packages and nothing of ours."""
    return [(start(AGENT), start(PACKAGES)) for _ in range(4)]


def test_import_is_quick_beside_that_of_the_packages(starts: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    agent_s, packages_s = (min(found["cpu_s"] for found in side) for side in zip(*starts, strict=True))

    assert agent_s < CPU_RATIO * packages_s


def test_import_is_small_beside_that_of_the_packages(starts: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    agent, packages = starts[0]

    assert agent["rss"] < packages["rss"] + RSS_OWN_BYTES
    assert len(agent["modules"]) < MODULES


def test_import_brings_nothing_heavy(starts: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    agent, _ = starts[0]

    assert HEAVY & {name.partition(".")[0] for name in agent["modules"]} == set()


def test_an_idle_agent_is_small_and_leaves_all_numbers_to_the_process_that_trains() -> None:
    idle = start(IDLE)

    assert idle["rss"] <= IDLE_BYTES
    assert {"onnxruntime", "numpy", "safetensors", "zstandard", "cryptography"} & set(idle["modules"]) == set()
