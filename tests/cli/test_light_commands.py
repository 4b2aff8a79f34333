"""Commands that only tell what there is answer at once: nothing heavy is imported for them."""

import json
import sys
from pathlib import Path

import pytest

from fedwright.cli.main import main
from fedwright.server_runtime.methods.registry import METHODS
from helpers.outside_package import HALF_STEP, write_half_step
from helpers.simulation import make_config
from helpers.tools import run

HEAVY = ("torch", "scipy", "sklearn", "onnx", "onnxruntime", "matplotlib")
SCRIPT = """
import json, sys
from fedwright.cli.main import main
heavy, *words = sys.argv[1:]
try:
    code = main(words)
except SystemExit as stop:
    code = stop.code
print(json.dumps([code, [name for name in json.loads(heavy) if name in sys.modules]]))
"""
COMMANDS = [
    "--help",
    "methods",
    "models",
    "profiles",
    "datasets",
    "bench --list",
    "server --help",
    "server run --help",
    "device run --help",
    "simulate --help",
    "init edge",
    *(f"init {method}" for method in sorted(METHODS)),
]


def ends_with(words: list[str]) -> tuple[int, list[str]]:
    """The exit code of a command in a process of its own, and the heavy modules that it imported."""
    said = run([sys.executable, "-c", SCRIPT, json.dumps(HEAVY), *words])
    code, heavy = json.loads(said.splitlines()[-1])
    return code, heavy


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_only_tells_imports_nothing_heavy(command: str) -> None:
    assert ends_with(command.split()) == (0, [])


@pytest.mark.parametrize("method", [*sorted(METHODS), "edge"])
def test_validate_of_what_init_wrote_imports_nothing_heavy(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", method]) == 0
    path = tmp_path / "run.toml"
    path.write_text(capsys.readouterr().out.replace("rounds = 10", "rounds = 7"))

    assert ends_with(["validate", str(path)]) == (0, [])


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small simulation that is over."""
    folder = tmp_path_factory.mktemp("past")
    small = {"devices": 2, "rows": 60, "least": 2, "evaluate_every": 0}
    _, text = make_config(folder, rounds=2, simulate=small)
    (folder / "run.toml").write_text(text)
    assert main(["simulate", str(folder / "run.toml")]) == 0
    return folder / "run.simulated"


@pytest.mark.parametrize("command", ["status", "check", "audit", "audit --verify", "ctl pause"])
def test_to_look_at_a_run_imports_nothing_heavy(command: str, past: Path) -> None:
    name, *words = command.split()

    assert ends_with(["server", name, str(past), *words]) == (0, [])


def test_rounds_are_taken_back_without_anything_heavy(past: Path) -> None:
    # It refuses a simulation, once it has looked at it.
    assert ends_with(["server", "rollback", str(past), "--to", "1"]) == (1, [])


def test_a_method_from_outside_brings_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_half_step(tmp_path)
    monkeypatch.chdir(tmp_path)
    said = run([sys.executable, "-m", "fedwright", "init", HALF_STEP])
    (tmp_path / "run.toml").write_text(said)

    assert ends_with(["init", HALF_STEP]) == (0, [])
    assert ends_with(["validate", "run.toml"]) == (0, [])


def test_the_script_would_see_what_is_heavy(tmp_path: Path) -> None:
    code, heavy = ends_with(["artifact", "build", "mlp", "-o", str(tmp_path / "mlp")])

    assert code == 0
    assert {"torch", "onnx"} <= set(heavy)
