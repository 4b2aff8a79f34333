"""The README tells the truth: its commands are run word for word, the files it names exist."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedwright.cli.main import build_parser
from helpers.readme import PLAIN, QUOTED, Screen, shown_commands
from helpers.tools import REPO

FILES = sorted(
    {word for word in QUOTED if (re.fullmatch(r"[\w./-]+(\.\w+|/)", word) and "/" in word) or word.endswith(".md")}
)
COMMANDS = shown_commands()
OURS = [command for command in COMMANDS if re.match(r"(sudo )?([A-Z_]+=\S+ )?(\S*/)?fedwright ", command)]

SERVE = re.compile(r"fedwright server run run\.toml")
JOIN = re.compile(r"FEDWRIGHT_BROKER_PASSWORD=\S+ fedwright device run --broker mqtt://\S+ --data npz:data\.npz")
RESUME = "fedwright server resume runs/run"
DEVICES = ("pi-01", "pi-02")
# What needs more than an empty folder, and the test that runs it.
ELSEWHERE = {
    r"(\S*/)?pip install .*": "tests/e2e/test_device_wheel.py",
    r"python3 -m venv .*": "tests/e2e/test_arm64_install.py",
    r"make (demo|test|setup|check)": "Makefile",
    r"fedwright demo\b.*": "tests/e2e/test_demo.py",
    r"(sudo )?(\S*/)?fedwright device (doctor|profile|install-service)\b.*": "tests/e2e/test_arm64_install.py",
    r"(sudo )?systemctl .*": "tests/device_runtime/test_service.py",
    r"(sudo )?apt install .*": "tests/e2e/test_brokers.py",
    r"mosquitto .*": "tests/e2e/test_trusted_round.py",
    r"fedwright server edge .*|.*fedwright device run .*--edge .*": "tests/e2e/test_edges.py",
    r"fedwright device run .*--bundle .*": "tests/e2e/test_trusted_round.py",
    r"fedwright device run .*--hide-counts .*": "tests/e2e/test_secure_sum.py",
    r"fedwright bench (?!--list).*": "tests/cli/test_bench_command.py",
    r"fedwright server ctl .*": "tests/e2e/test_page.py",
    # With a word to fill in.
    r"fedwright .*\b[A-Z]{3,}\b.*": "tests/cli/test_main.py",
}
# Run after the story below, in its folder, word for word.
AFTERWARDS = [
    command
    for command in OURS
    if not (SERVE.fullmatch(command) or JOIN.fullmatch(command) or command == RESUME)
    and not any(re.fullmatch(pattern, command) for pattern in ELSEWHERE)
]


@dataclass
class Story:
    """What was seen when README's host and device commands were run in empty folders."""

    folder: Path
    environment: dict[str, str]
    host: str
    resumed: str
    devices: dict[str, str]
    line: str


def environment_of(home: Path) -> dict[str, str]:
    """A person's shell with the installed command in it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "COLUMNS": "160", "TERM": "xterm"}


def make_folder(parent: Path, name: str) -> Path:
    """An empty folder that is also somebody's home."""
    folder = parent / name
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """README's two commands, with nothing started before; the server is killed after two rounds and resumed."""
    parent = tmp_path_factory.mktemp("readme")
    folder = make_folder(parent, "host")
    environment = environment_of(folder)
    for command in [command for command in COMMANDS if re.match(r"fedwright init \w+ > ", command)]:
        subprocess.run(["bash", "-c", command], cwd=folder, env=environment, check=True, timeout=60)
    digits = load_digits()
    x, y = (digits.images[:, None] / 16).astype(np.float32), digits.target.astype(np.int64)
    screens = [Screen("fedwright server run run.toml", folder=folder, environment=environment)]
    try:
        [host] = screens
        found = JOIN.search(host.read_until(lambda text: JOIN.search(text) and "waiting for 2" in text))
        assert found is not None, host.text
        for number, device in enumerate(DEVICES):
            own = make_folder(parent, device)
            np.savez(own / "data.npz", x=x[number::2], y=y[number::2])
            # Two boards have two names; here one machine is both of them.
            joined = Screen(f"{found[0]} --device {device}", folder=own, environment=environment_of(own))
            screens.append(joined)
        host.read_until(lambda text: "round 2/" in text)
        host.kill()
        resumed = Screen(RESUME, folder=folder, environment=environment)
        screens.append(resumed)
        code = resumed.end()
        assert code == 0, resumed.text
        devices = {}
        for device, screen in zip(DEVICES, screens[1:], strict=False):
            devices[device] = screen.read_until(lambda text: "is complete" in text)
            screen.kill(signal.SIGTERM)
            assert screen.process.returncode == 0, screen.text
        yield Story(folder, environment, host.text, resumed.text, devices, found[0])
    finally:
        for screen in screens:
            screen.close()


def test_the_readme_shows_the_two_commands() -> None:
    assert len(FILES) > 3
    assert [command for command in COMMANDS if SERVE.fullmatch(command)]
    assert [command for command in COMMANDS if JOIN.fullmatch(command)]
    assert RESUME in COMMANDS


def test_every_command_is_run_by_a_test() -> None:
    left = [command for command in COMMANDS if command not in OURS]

    assert [command for command in left if not any(re.fullmatch(pattern, command) for pattern in ELSEWHERE)] == []
    assert [name for name in ELSEWHERE.values() if not (REPO / name).exists()] == []


@pytest.mark.broker
@pytest.mark.slow
def test_the_two_commands_work_as_printed(story: Story) -> None:
    assert "broker: started " in story.host
    assert story.host.count(story.line) == 1
    for device in DEVICES:
        assert f"{device} joined with " in story.host
    assert "round 8/8 took " in story.resumed
    assert re.search(r"global model: \S*runs/run/model\.onnx", story.resumed)
    for said in story.devices.values():
        assert "waiting for a task" in said
        assert re.search(r"the broker at mqtt://\S+ is gone", said)
        assert re.search(r"the broker at mqtt://\S+ is back after", said)


@pytest.mark.broker
@pytest.mark.slow
def test_the_resumed_server_prints_the_same_line(story: Story) -> None:
    found = JOIN.search(story.resumed)

    assert found is not None
    assert found[0] == story.line


@pytest.mark.broker
@pytest.mark.slow
def test_the_password_is_in_no_log(story: Story) -> None:
    password = story.line.split()[0].partition("=")[2]

    log = (story.folder / "runs/run/server.log").read_text()

    assert "waiting for 2 of 2 devices" in log
    assert password not in log + (story.folder / "runs/run/broker/broker.log").read_text()
    assert not any(password in said for said in story.devices.values())


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("command", AFTERWARDS)
def test_a_command_works_word_for_word(command: str, story: Story) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=story.folder,
        env=story.environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", FILES)
def test_a_named_file_exists(name: str) -> None:
    assert (REPO / name).exists()


@pytest.mark.parametrize("command", OURS)
def test_a_shown_command_is_understood(command: str) -> None:
    words = shlex.split(command[command.index("fedwright ") :].split(" > ")[0])[1:]

    args = build_parser(words[0]).parse_args(words)

    assert callable(args.run)


def test_every_make_target_exists() -> None:
    makefile = (REPO / "Makefile").read_text()
    targets = {line.split()[1] for line in COMMANDS if line.startswith("make ")}

    assert {"demo", "test"} <= targets
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def test_the_tables_are_whole() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", PLAIN, flags=re.MULTILINE)

    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1
