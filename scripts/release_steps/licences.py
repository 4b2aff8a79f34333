"""Every package that an extra brings, with its licence: as a list for people and as a CycloneDX bill of materials."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedwright import __version__

# Not installed where releases are made: it needs the board's own libraries.
KNOWN = {"jetson-stats": "AGPL-3.0"}
EXTRAS = ("device", "server", "page", "metrics", "notebook", "private", "jetson")


@dataclass(frozen=True)
class Package:
    """One dependency; version is empty where it is not installed here."""

    name: str
    version: str
    licence: str
    extras: tuple[str, ...]


def packages() -> list[Package]:
    """All that the extras bring, with the extras that bring it."""
    found: dict[str, set[str]] = {}
    for extra in EXTRAS:
        for name in _closure("fedwright", extra):
            found.setdefault(name, set()).add(extra)
    return [_package(name, extras) for name, extras in sorted(found.items())]


def _closure(root: str, extra: str) -> Iterator[str]:
    """The names of all packages that a package with an extra needs, itself left out."""
    waiting, seen = [(root, extra)], set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        if name != root:
            yield name
        for requirement in _needs(name, wanted):
            inner = canonicalize_name(requirement.name)
            waiting += [(inner, each) for each in (requirement.extras or {""})]


def _needs(name: str, extra: str) -> list[Requirement]:
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    parsed = [Requirement(line) for line in lines]
    return [each for each in parsed if each.marker is None or each.marker.evaluate({"extra": extra})]


def _package(name: str, extras: set[str]) -> Package:
    ordered = tuple(extra for extra in EXTRAS if extra in extras)
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return Package(name, "", KNOWN.get(name, "unknown"), ordered)
    return Package(name, about["Version"], _said(about), ordered)


def _said(about: metadata.PackageMetadata) -> str:
    fields = {name: about[name] for name in ("License-Expression", "License") if name in about}
    return licence_of(about.get_all("Classifier") or [], fields)


def licence_of(classifiers: list[str], about: dict[str, str]) -> str:
    """What a package says of its licence: an expression, else a classifier, else the first line of its text."""
    if about.get("License-Expression"):
        return about["License-Expression"]
    named = [line.rsplit(" :: ", 1)[-1] for line in classifiers if line.startswith("License :: OSI")]
    if named:
        return " or ".join(named)
    text = about.get("License", "").strip()
    return re.split(r"\n", text)[0][:80] or "unknown"


def licence_list(found: list[Package]) -> str:
    """A table for people."""
    rows = [f"| {each.name} | {each.version or '-'} | {each.licence} | {', '.join(each.extras)} |" for each in found]
    head = ["# Licences of all dependencies", "", "| package | version | licence | extras |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def bill_of_materials(found: list[Package]) -> str:
    """CycloneDX 1.6 as JSON."""
    parts = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{each.name}@{each.version}",
            "purl": f"pkg:pypi/{each.name}@{each.version}",
            "name": each.name,
            "version": each.version,
            "licenses": [{"license": {"name": each.licence}}],
        }
        for each in found
    ]
    own = {"type": "application", "name": "fedwright", "version": __version__, "bom-ref": "fedwright"}
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": own}}
    return json.dumps({**bill, "components": parts}, indent=2) + "\n"
