"""How much disc an installation takes: the files of a package and of all that it needs."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

# Runs in the environment that is measured, so it may import nothing else.
SCRIPT = """
import json, os, re, sys
from importlib import metadata

def closure(wanted):
    found, todo = {}, [(name, frozenset(extras)) for name, extras in wanted]
    while todo:
        name, extras = todo.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found and extras <= found[key][1]:
            continue
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        seen = found.get(key, (None, frozenset()))[1] | extras
        found[key] = (package, seen)
        for line in package.requires or ():
            head, _, marker = line.partition(";")
            extra = re.search(r"extra\\s*==\\s*['\\"]([^'\\"]+)", marker)
            if extra and extra.group(1) not in seen:
                continue
            match = re.match(r"\\s*([A-Za-z0-9._-]+)\\s*(?:\\[([^\\]]*)\\])?", head)
            todo.append((match.group(1), frozenset(filter(None, re.split(r"\\s*,\\s*", match.group(2) or "")))))
    return [package for package, _ in found.values()]

total = 0
for package in closure(json.loads(sys.argv[1])):
    for file in package.files or ():
        path = file.locate()
        if os.path.isfile(path) and not str(path).endswith(".pyc"):
            total += os.path.getsize(path)
print(total)
"""


def installed_mb(python: Path, *packages: tuple[str, list[str]]) -> float:
    """MB of the named packages, with these extras, and of everything they need in that environment."""
    command = [str(python), "-c", SCRIPT, json.dumps(packages)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1e6


def own_mb() -> float:
    """MB of `fedwright[device]`; the sources themselves are counted where they lie, installed or not."""
    spec = importlib.util.find_spec("fedwright")
    assert spec is not None
    assert spec.origin is not None
    sources = sum(path.stat().st_size for path in Path(spec.origin).parent.rglob("*") if path.suffix != ".pyc")
    # An editable installation has next to no files of its own, so that nothing counts twice there.
    return sources / 1e6 + installed_mb(Path(sys.executable), ("fedwright", ["device"]))
