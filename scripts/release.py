"""`make release`: build, check, install in fresh environments, list licences, sign; nothing is published."""

import argparse
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from fedwright import __version__
from release_steps.changelog import released
from release_steps.installs import try_installs, try_on_arm64
from release_steps.licences import bill_of_materials, licence_list, packages
from release_steps.packages import build_packages
from release_steps.signing import check_key, sign, write_sums

ROOT = Path(__file__).resolve().parent.parent
# What an earlier release left, and nothing else, is removed.
OURS = ("fedwright-*.whl", "fedwright-*.tar.gz", "sbom.cdx.json", "LICENCES.md", "SHA256SUMS*")


def empty(out: Path) -> None:
    """Remove an earlier release from the folder; ValueError where anything else is in it."""
    found = sorted(out.iterdir()) if out.exists() else []
    others = [path.name for path in found if not any(path.match(pattern) for pattern in OURS)]
    if others:
        raise ValueError(f"{out} has {others[0]}, which is of no release; name another folder with --out")
    for path in found:
        path.unlink()


def build_twice(root: Path, out: Path) -> list[Path]:
    """The packages, if a second build gives the same bytes."""
    with tempfile.TemporaryDirectory() as second:
        made, again = build_packages(root, out), build_packages(root, Path(second))
        for first, other in zip(made, again, strict=True):
            if first.read_bytes() != other.read_bytes():
                raise ValueError(f"{first.name} differs from build to build; find what changes in it")
    return made


def release(args: argparse.Namespace) -> None:
    """All steps in their order; what can be refused without building is looked at first."""
    log, today = ROOT / "CHANGELOG.md", datetime.now(timezone.utc).date().isoformat()
    text = released(log.read_text(), __version__, today) if args.changelog else ""
    if args.key is not None:
        check_key(args.key)
    empty(args.out)
    made = build_twice(ROOT, args.out)
    say(f"two builds gave the same bytes: {', '.join(file.name for file in made)}")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, made)], check=True)
    wheel = next(file for file in made if file.suffix == ".whl")
    for line in try_installs(wheel):
        say(line)
    if args.arm64:
        try_on_arm64(wheel, ROOT)
    found = packages()
    (args.out / "sbom.cdx.json").write_text(bill_of_materials(found))
    (args.out / "LICENCES.md").write_text(licence_list(found))
    sums = write_sums([*made, args.out / "sbom.cdx.json", args.out / "LICENCES.md"])
    if args.key is None:
        say(f"{sums.name} is not signed; name a key with ARGS='--key KEY'")
    else:
        say(f"signed: {sign(sums, args.key).name}")
    if args.changelog:
        log.write_text(text)
    say(f"{__version__} is in {args.out}")


def say(line: str) -> None:
    """Tell whoever releases."""
    print(f"release: {line}", flush=True)


def main() -> int:
    """The first step that fails ends it, in a sentence."""
    parser = argparse.ArgumentParser(description="Make a release in a folder; nothing is published.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--key", help="the key to sign with: a file with an SSH key, or the name of a GnuPG key")
    parser.add_argument("--arm64", action="store_true", help="also install and train on ARM64 under qemu (minutes)")
    parser.add_argument("--changelog", action="store_true", help="turn Unreleased into the section of this version")
    try:
        release(parser.parse_args())
    except (ValueError, subprocess.CalledProcessError) as err:
        say(str(err))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
