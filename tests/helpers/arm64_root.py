"""A folder with an ARM64 Debian userland and Python, and the means to run it as a given CPU under qemu.

Nothing here needs root: apt works on private state, packages are unpacked and never configured, and the Python
packages are ARM64 wheels that pip puts into a folder.
"""

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from helpers.tools import CONSTRAINTS, cached, extra_requirements, missing, require_tool, run

LAYOUT = "2"
DEBIAN_PACKAGES = ["python3-minimal", "libpython3-stdlib", "libstdc++6", "libgcc-s1"]
PLATFORMS = ["manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64"]
# Raises SIGILL on cortex-a72: the control that shows the emulated CPU model matters.
BAD_ONNXRUNTIME = "onnxruntime==1.21.0"
CORES = 4


@dataclass(frozen=True)
class Arm64Root:
    """An unpacked root; `site` holds the device requirements, `bad_site` the onnxruntime that must die."""

    folder: Path

    @property
    def site(self) -> Path:
        """Packages of the device extra."""
        return self.folder / "opt" / "site"

    @property
    def bad_site(self) -> Path:
        """The onnxruntime of the control."""
        return self.folder / "opt" / "bad-site"

    def run_python(
        self, cpu: str, arguments: list[str], *, path: list[Path], timeout_s: float = 280
    ) -> subprocess.CompletedProcess[str]:
        """Run the root's Python as `cpu` with the folders in `path` importable."""
        qemu = require_tool("qemu-aarch64-static")
        environment = {
            "PATH": "/usr/bin",
            "HOME": "/nonexistent",
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [qemu, "-cpu", cpu, "-L", str(self.folder), str(self.folder / "usr/bin/python3"), *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
            preexec_fn=_no_core_file,
        )

    def make_environment(self, folder: Path, *, cpu: str) -> Path:
        """A virtual environment whose Python runs as `cpu`, with the device requirements in reach; its interpreter."""
        [program] = (self.folder / "usr/bin").glob("python3.[0-9]*")
        packages = folder / "lib" / program.name / "site-packages"
        packages.mkdir(parents=True)
        (packages / "requirements.pth").write_text(f"{self.site}\n")
        (folder / "pyvenv.cfg").write_text(f"home = {program.parent}\ninclude-system-site-packages = false\n")
        python = folder / "bin" / "python3"
        python.parent.mkdir()
        qemu = require_tool("qemu-aarch64-static")
        # Told its own path, Python finds the environment, and starts children by way of this file too.
        python.write_text(f'#!/bin/sh\nexec {qemu} -cpu {cpu} -L {self.folder} -0 "$0" {program} "$@"\n')
        python.chmod(0o755)
        return python


def _no_core_file() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def arm64_root(wheel: Path) -> Arm64Root:
    """The cached root for these requirements, built when it is not there yet."""
    for tool in ("apt-get", "dpkg-deb", "qemu-aarch64-static"):
        require_tool(tool)
    requirements = extra_requirements(wheel, "device")
    recipe = [LAYOUT, CONSTRAINTS.read_text(), BAD_ONNXRUNTIME, *DEBIAN_PACKAGES, *requirements]
    return Arm64Root(cached("arm64-root", recipe, lambda folder: _build(folder, requirements)))


def _build(folder: Path, requirements: list[str]) -> None:
    apt = folder / "apt"
    _unpack_debian(folder, apt)
    shutil.rmtree(apt)
    _fake_board(folder)
    [python] = (folder / "usr/bin").glob("python3.[0-9]*")
    root = Arm64Root(folder)
    python_version = python.name.removeprefix("python")
    _install_wheels(root.site, python_version, ["-c", str(CONSTRAINTS), *requirements])
    _install_wheels(root.bad_site, python_version, ["--no-deps", BAD_ONNXRUNTIME])


def _unpack_debian(folder: Path, apt: Path) -> None:
    """Download the packages and what they need with private apt state, then unpack them."""
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
        "Dir::Cache": str(apt / "cache"),
        "Dir::State": str(apt / "state"),
        "Dir::State::status": str(apt / "status"),
    }
    command = ["apt-get", "-qq", "-y", "--no-install-recommends"]
    command += [f"-o{key}={value}" for key, value in options.items()]
    # A source without ARM64 packages makes `update` complain; `install` tells whether enough was found.
    subprocess.run([*command, "update"], capture_output=True, timeout=120, check=False)
    fetched = subprocess.run(
        [*command, "--download-only", "install", *DEBIAN_PACKAGES],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if fetched.returncode != 0:
        missing(f"apt's sources here have no ARM64 packages: {fetched.stderr.strip()[-200:]}")
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        run(["dpkg-deb", "-x", str(package), str(folder)])


def _fake_board(folder: Path) -> None:
    """What a Raspberry Pi 4 shows under /proc and /sys; onnxruntime crashes when it sees the host's instead."""
    block = (
        "processor\t: {core}\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd evtstrm crc32 cpuid\n"
        "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd08\nCPU revision\t: 3\n"
    )
    files = {"proc/cpuinfo": "\n".join(block.format(core=core) for core in range(CORES))}
    cpu = "sys/devices/system/cpu"
    for name in ("possible", "present", "online"):
        files[f"{cpu}/{name}"] = f"0-{CORES - 1}\n"
    for core in range(CORES):
        topology = f"{cpu}/cpu{core}/topology"
        files[f"{topology}/core_id"] = f"{core}\n"
        files[f"{topology}/physical_package_id"] = "0\n"
        files[f"{topology}/core_siblings_list"] = f"0-{CORES - 1}\n"
        files[f"{topology}/thread_siblings_list"] = f"{core}\n"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _install_wheels(target: Path, python_version: str, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--only-binary=:all:"]
    command += ["--target", str(target), "--python-version", python_version]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    run([*command, *arguments])
