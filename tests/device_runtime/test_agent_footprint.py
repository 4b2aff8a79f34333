"""What an agent costs before it does anything: processor time, memory, and nothing heavy imported."""

import json
import subprocess
import sys

import pytest

CPU_LIMIT_S = 0.5
RSS_LIMIT_BYTES = 60 * 1024**2
HEAVY = {"torch", "onnx", "sklearn", "scipy", "rich", "matplotlib", "pandas", "PIL", "cryptography", "amqtt"}

PROGRAM = """
import fedwright.device_runtime.start
import fedwright.device_runtime.train.portable
import fedwright.device_runtime.train.check
import fedwright.device_runtime.data
import fedwright.protocol.link.mqtt
import json, sys
from fedwright.device_runtime import facts
names = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"cpu_s": facts.cpu_seconds(), "rss": facts.peak_rss_bytes(), "modules": names}))
"""


@pytest.fixture(scope="module")
def imports():
    """Three fresh processes that import all of an agent."""
    done = [
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    return [json.loads(process.stdout) for process in done]


def test_import_is_quick(imports):
    assert min(found["cpu_s"] for found in imports) < CPU_LIMIT_S


def test_import_is_small(imports):
    assert min(found["rss"] for found in imports) < RSS_LIMIT_BYTES


def test_import_brings_nothing_heavy(imports):
    assert HEAVY & set(imports[0]["modules"]) == set()
