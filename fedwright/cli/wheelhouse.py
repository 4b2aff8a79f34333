"""`fedwright device wheelhouse`: every package that a board needs, in a folder, for boards without internet."""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from fedwright import __version__
from fedwright.cli.arguments import command
from fedwright.protocol.errors import ConfigError

EXAMPLE = """example:
  fedwright device wheelhouse --platform aarch64 --python 3.11 wheels

On the board, with the folder copied there:
  pip install --no-index --find-links wheels "fedwright[device]"
"""
PLATFORMS = ("aarch64", "x86_64")
# The oldest C library that wheels are built for, and that of Ubuntu 22.04 and JetPack 6.
OLDEST_GLIBC, USUAL_GLIBC = 17, 35


def add_wheelhouse(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    house = command(commands, "wheelhouse", "gather all packages that a board without internet needs", EXAMPLE)
    house.add_argument("folder", metavar="DIR", type=Path, nargs="?", default=Path("wheels"), help="where they go")
    house.add_argument("--platform", choices=PLATFORMS, default="aarch64", help="the board's processor")
    house.add_argument("--python", type=_python, default="3.11", metavar="VERSION", help="the board's Python")
    house.add_argument(
        "--glibc", type=int, default=USUAL_GLIBC, metavar="N", help="the board's C library 2.N (default: %(default)s)"
    )
    house.add_argument(
        "--wheel", type=Path, metavar="FILE", help="fedwright's own wheel, where this version is not published"
    )
    house.set_defaults(run=_gather)


def pip_call(folder: Path, *, platform: str, python: str, glibc: int) -> list[str]:
    """What makes pip download for another machine than this one."""
    tags = [f"manylinux_2_{minor}_{platform}" for minor in range(OLDEST_GLIBC, glibc + 1)]
    tags.append(f"manylinux2014_{platform}")
    call = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    call += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    call += [word for tag in tags for word in ("--platform", tag)]
    return [*call, "--dest", str(folder), "--find-links", str(folder), f"fedwright[device]=={__version__}"]


def _python(text: str) -> str:
    if not re.fullmatch(r"3\.\d{1,2}", text) or int(text[2:]) < 10:
        raise argparse.ArgumentTypeError(f"{text!r} is no Python that devices can have; give 3.10, 3.11 or newer")
    return text


def _gather(args: argparse.Namespace) -> int:
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.wheel is not None:
        shutil.copy2(args.wheel, args.folder)
    call = pip_call(args.folder, platform=args.platform, python=args.python, glibc=args.glibc)
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), "see pip")
        raise ConfigError(
            f"pip could not gather the packages ({reason}); check the network, --python and --platform, and give "
            "--wheel where this version is not published"
        )
    wheels = sorted(args.folder.glob("*.whl"))
    size_bytes = sum(file.stat().st_size for file in wheels)
    print(f"{args.folder}: {len(wheels)} packages, {size_bytes / 1e6:.0f} MB; on the board:\n")
    print(f'  pip install --no-index --find-links {args.folder.name} "fedwright[device]"')
    return 0
