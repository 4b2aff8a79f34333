"""The structure stays what it is: import directions, lazy commands, docstrings, sizes, modules that import."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator

import pytest

from helpers import layout
from helpers.layout import Module, below, modules_of, sources_of
from helpers.tools import REPO, run

SOURCES = sources_of(REPO)
TESTS = modules_of(REPO / "tests")
NAMES = [module.name for module in SOURCES]
Rule = Callable[[Module], Iterator[str]]

PLANTED = {
    "protocol knows a side": (
        layout.import_direction,
        "fedwright.protocol.x",
        "import fedwright.server_runtime.rounds",
    ),
    "device knows server": (
        layout.import_direction,
        "fedwright.device_runtime.x",
        "from fedwright import server_runtime",
    ),
    "server knows device": (
        layout.import_direction,
        "fedwright.server_runtime.x",
        "import fedwright.device_runtime.agent",
    ),
    "block knows methods": (
        layout.import_direction,
        "fedwright.server_runtime.blocks.x",
        "from fedwright.server_runtime.methods.base import Method",
    ),
    "method knows rounds": (
        layout.server_layers,
        "fedwright.server_runtime.methods.x",
        "from fedwright.server_runtime.rounds.store.base import Position",
    ),
    "part of the server in no layer": (layout.server_layers, "fedwright.server_runtime.surprise", "import json"),
    "runtime knows commands": (layout.import_direction, "fedwright.device_runtime.x", "import fedwright.cli.main"),
    "torch in protocol": (layout.torch_place, "fedwright.protocol.x", "def f():\n    import torch.nn"),
    "torch in a command": (layout.torch_place, "fedwright.cli.x", "def f():\n    from torch import nn"),
    "onnx on the device": (layout.device_packages, "fedwright.device_runtime.x", "def f():\n    import onnx"),
    "rich in device command": (layout.device_packages, "fedwright.cli.device", "from rich.table import Table"),
    "too new for 3.10": (layout.device_packages, "fedwright.device_runtime.x", "import tomllib"),
    "a type in brackets": (layout.plain_types, "fedwright.cli.x", "class A(logging.StreamHandler[str]): ..."),
    "eager command": (
        layout.lazy_commands,
        "fedwright.cli.x",
        "from fedwright.server_runtime import config\n\ndef add_parser(subparsers): ...",
    ),
    "no docstring": (layout.docstring, "fedwright.x", "VALUE = 1"),
    "long file": (layout.size, "fedwright.x", "\n" * 401),
    "long function": (layout.size, "fedwright.x", "def f():\n" + "    pass\n" * 60),
    "print": (layout.printing, "fedwright.protocol.x", "print('hello')"),
}


@pytest.mark.parametrize("rule", layout.SOURCE_RULES, ids=lambda rule: rule.__name__)
def test_sources_keep_the_rule(rule: Rule) -> None:
    broken = [sentence for module in SOURCES for sentence in rule(module)]

    assert len(SOURCES) > 350
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("rule", [layout.docstring, layout.size], ids=lambda rule: rule.__name__)
def test_tests_keep_the_rule(rule: Rule) -> None:
    broken = [sentence for module in TESTS for sentence in rule(module)]

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(("rule", "name", "text"), PLANTED.values(), ids=PLANTED)
def test_a_planted_violation_is_found(rule: Rule, name: str, text: str) -> None:
    assert list(rule(Module(name, text)))


def test_what_is_allowed_is_not_reported() -> None:
    text = '"""Fine."""\nimport numpy\nfrom fedwright import __version__\nfrom fedwright.protocol import errors\n'
    module = Module("fedwright.device_runtime.x", text)

    assert [sentence for rule in layout.SOURCE_RULES for sentence in rule(module)] == []


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _, _ in PLANTED.values()} == set(layout.SOURCE_RULES)


@pytest.mark.parametrize("name", sorted(set(NAMES) - layout.ELSEWHERE - layout.WITH_RAY))
def test_module_imports(name: str) -> None:
    importlib.import_module(name)


def test_device_side_imports_without_the_server_packages() -> None:
    names = [name for name in NAMES if any(below(name, package) for package in layout.DEVICE_SIDE)]
    script = (
        "import importlib, json, sys\n"
        "names, blocked = json.loads(sys.argv[1])\n"
        "sys.modules.update(dict.fromkeys(blocked))\n"
        "for name in names: importlib.import_module(name)\n"
        "print('imported', len(names))\n"
    )

    said = run([sys.executable, "-c", script, json.dumps([names, sorted(layout.HEAVY)])])

    assert said == f"imported {len(names)}\n"
    assert len(names) > 15
