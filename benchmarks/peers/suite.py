"""The suite peers: ten devices of ours and ten of Flower on the same task, measured in the same way in one run."""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.suite import check
from fedwright.benchmarks.peers import flower, ours, sizes
from fedwright.benchmarks.peers.scene import PeerResult, Scene, prepare
from fedwright.protocol.errors import ConfigError
from fedwright.protocol.support.steps import steps

SMALL = 'codec = "int8"\nmodel_codec = "bf16"'
DEVICES, KILLED_AMONG = 10, 4
# Of ours and of Flower: tasks without a kill, and with one.
MEASUREMENTS = (2 + 2) + (1 + 2)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Both systems on one task; without Flower only ours is measured, and the result says so."""
    rounds = 8 if args.quick else 12
    with (
        tempfile.TemporaryDirectory(prefix="fedwright-peers-") as name,
        steps("measurements", MEASUREMENTS) as advance,
    ):
        found = _Found(Scene(Path(name), DEVICES, rounds), advance)
        prepare(found.scene)
        _ours(found)
        note = _flower(found)
    rows, kills, install = found.rows, found.kills, found.install
    tables: dict[str, Any] = {
        f"LeNet on {DEVICES} devices, {rounds} rounds": [_row(name, found) for name, found in rows.items()],
        f"after kill -9 and a new start, {KILLED_AMONG} devices": [
            {"system": name, **said} for name, said in kills.items()
        ],
        "installed on a device, MB": [{"packages": name, "MB": size} for name, size in install.items()],
    }
    return {"seeds": [1], "tables": tables, "notes": note, "checks": checks(rows, install)}


@dataclass
class _Found:
    """What was measured so far; advance: called after each measurement."""

    scene: Scene
    advance: Callable[[], None]
    rows: dict[str, PeerResult] = field(default_factory=dict)
    kills: dict[str, dict[str, str]] = field(default_factory=dict)
    install: dict[str, float] = field(default_factory=dict)

    def row(self, name: str, measured: PeerResult) -> None:
        """Take what a task cost."""
        self.rows[name] = measured
        self.advance()

    def kill(self, name: str, victim: str, said: str) -> None:
        """Take what became of a task after a kill."""
        self.kills.setdefault(name, {})[victim] = said
        self.advance()


def _ours(found: _Found) -> None:
    scene = found.scene
    found.row("fedwright, float32", ours.measure(scene, "float32"))
    found.row("fedwright, int8 up and bf16 down", ours.measure(scene, "small", update=SMALL))
    few = _fewer(scene, "ours")
    found.kill("fedwright", "device", ours.survive_device(few))
    found.kill("fedwright", "server", ours.survive_server(few))
    found.install["fedwright[device]"] = sizes.own_mb()


def _flower(found: _Found) -> list[str]:
    """Measure Flower too; what stands in the way is said and not counted."""
    scene = found.scene
    try:
        python = flower.environment()
    except ConfigError as err:
        return [str(err)]
    name = f"flower {flower.version(python)}"
    found.row(name, flower.measure(scene, python))
    found.kill(name, "device", flower.survive_device(_fewer(scene, "device"), python))
    found.kill(name, "server", flower.survive_server(_fewer(scene, "server"), python))
    found.install["flwr and torch"] = sizes.installed_mb(python, ("flwr", []), ("torch", []))
    return [f"{name} is the newest of {flower.WANTED} that could be installed here"]


def _fewer(scene: Scene, folder: str) -> Scene:
    """The same task for fewer devices: what a kill does shows as well."""
    few = replace(scene, folder=scene.folder / folder, devices=KILLED_AMONG)
    few.folder.mkdir()
    prepare(few)
    return few


def _row(name: str, found: PeerResult) -> dict[str, Any]:
    return {
        "system": name,
        "s per round": found.round_s,
        "cold start s": found.marks_s[0],
        "device CPU s": found.device_cpu_s,
        "device MB": found.device_rss_mb,
        "up MB": found.up_mb,
        "down MB": found.down_mb,
        "accuracy %": 100 * found.accuracy,
    }


def checks(rows: dict[str, PeerResult], install: dict[str, float]) -> list[dict[str, Any]]:
    """What is promised against Flower; nothing where Flower was not measured."""
    peers = [found for name, found in rows.items() if name.startswith("flower")]
    if not peers:
        return []
    peer, whole, small = peers[0], rows["fedwright, float32"], rows["fedwright, int8 up and bf16 down"]
    overhead = small.round_s / peer.round_s
    memory = small.device_rss_mb / peer.device_rss_mb
    sent = (small.up_mb + small.down_mb) / (peer.up_mb + peer.down_mb)
    behind = 100 * (peer.accuracy - small.accuracy)
    size = install["fedwright[device]"] / install["flwr and torch"]
    return [
        check("seconds per round, ours / Flower's", overhead, "<= 0.05", holds=overhead <= 1 / 20),
        check("memory of a device, ours / Flower's", memory, "<= 0.33", holds=memory <= 1 / 3),
        check("bytes per round, ours / Flower's", sent, "<= 0.5", holds=sent <= 1 / 2),
        check("accuracy points behind Flower's, rounded updates", behind, "<= 0.5", holds=behind <= 0.5),
        check(
            "accuracy points between float32 and Flower's",
            abs(100 * (peer.accuracy - whole.accuracy)),
            "<= 0.5",
            holds=abs(peer.accuracy - whole.accuracy) <= 0.005,
        ),
        check("installed size, ours / Flower's", size, "<= 0.2", holds=size <= 1 / 5),
    ]
