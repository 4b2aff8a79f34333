"""Code from outside this package: `python:module:name`, and what installed packages offer under short names."""

import importlib
import logging
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fedwright.protocol.errors import ConfigError, DataError, FedwrightError
from fedwright.protocol.support.settings import suggest

PYTHON = "python:"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PluginKind:
    """A kind of thing that packages may offer: its entry-point group, its noun, and the error for its mistakes."""

    name: str
    noun: str
    error: type[FedwrightError] = ConfigError


METHODS = PluginKind("fedwright.methods", "method")
MODELS = PluginKind("fedwright.models", "model")
DATASETS = PluginKind("fedwright.datasets", "data set")
SOURCES = PluginKind("fedwright.sources", "data source", DataError)
PROFILES = PluginKind("fedwright.profiles", "profile folder")
LOSSES = PluginKind("fedwright.losses", "loss")


@dataclass(frozen=True)
class Plugin:
    """A name for something in a module; nothing is imported before it is loaded.

    package: the installed package that offers it; empty where `python:module:name` was written.
    """

    group: PluginKind
    name: str
    module: str
    attribute: str
    package: str = ""

    @property
    def reference(self) -> str:
        """The same thing by where it lies."""
        return f"{PYTHON}{self.module}:{self.attribute}"

    @property
    def summary(self) -> str:
        """What can be said of it without importing it."""
        return f"{self.module}:{self.attribute}".rstrip(":") + f" of the package {self.package}"

    def load(self) -> Any:
        """What it names; the group's error says why it cannot be had."""
        if not self.attribute:
            raise self.problem(f"it names the module {self.module!r}; write module:name")
        found: Any = self._module()
        for name in self.attribute.split("."):
            if not hasattr(found, name):
                near = suggest(name, [known for known in dir(found) if not known.startswith("_")]).split("? ")
                hint = f"; {near[0]}?" if len(near) > 1 else ""
                raise self.problem(f"module {self.module!r} has no {self.attribute!r}{hint}")
            found = getattr(found, name)
        return found

    def problem(self, what: str) -> FedwrightError:
        """The error that says what is wrong with it, and whose it is."""
        owner = f" of the package {self.package}" if self.package else ""
        return self.group.error(f"{self.group.noun} {self.name!r}{owner}: {what}")

    def _module(self) -> ModuleType:
        try:
            return import_from_here(self.module)
        except Exception as err:
            missing = err.name if isinstance(err, ModuleNotFoundError) else None
            if missing is not None and f"{self.module}.".startswith(f"{missing}."):
                raise self.problem(
                    f"there is no module {missing!r} in this folder, {Path.cwd()}, nor is it installed; "
                    "start where it lies, or install it"
                ) from err
            raise self.problem(
                f"module {self.module!r} cannot be imported ({type(err).__name__}: {err}); mend or reinstall it"
            ) from err


def is_reference(name: str) -> bool:
    """Whether a name says where something lies."""
    return name.startswith(PYTHON)


def parse(group: PluginKind, name: str) -> Plugin:
    """`python:module:name`, taken apart."""
    module, _, attribute = name.removeprefix(PYTHON).partition(":")
    if not is_reference(name) or not module or not attribute or ":" in attribute:
        raise group.error(f"{group.noun} {name!r} must look like python:module:name")
    return Plugin(group, name, module, attribute)


def offered(group: PluginKind, *, taken: Collection[str]) -> list[Plugin]:
    """What installed packages offer, by name; names that are taken stay ours, which is said once."""
    free = []
    for plugin in _scan(group, tuple(sys.path)):
        if plugin.name in taken:
            _say_taken(plugin)
        else:
            free.append(plugin)
    return free


def find(group: PluginKind, name: str, *, taken: Collection[str]) -> Plugin | None:
    """What a name from outside stands for; None when it is taken or nobody offers it."""
    if is_reference(name):
        return parse(group, name)
    found = [plugin for plugin in _scan(group, tuple(sys.path)) if plugin.name == name]
    if name in taken:
        for plugin in found:
            _say_taken(plugin)
        return None
    if len(found) > 1:
        packages = " and ".join(plugin.package for plugin in found)
        raise group.error(
            f"{group.noun} {name!r} is offered by {packages}; write {found[0].reference}, or uninstall all but one"
        )
    return found[0] if found else None


def import_from_here(name: str) -> ModuleType:
    """Import a module from the current folder or from where Python looks anyway, as `python -m` does.

    An installed `fedwright` has the folder of its script in the path instead of the current one.
    """
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        # It stays there: what the module imports when it is called must be found as well.
        sys.path.insert(0, here)
        importlib.invalidate_caches()
    return importlib.import_module(name)


@lru_cache(maxsize=64)
def _scan(group: PluginKind, path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Every entry point of a group, sorted; looked for again when Python looks elsewhere for packages."""
    # Not at the top: importing it takes longer than most commands that do not need it.
    from importlib.metadata import entry_points

    del path
    found = []
    for point in entry_points(group=group.name):
        module, _, attribute = point.value.partition("[")[0].partition(":")
        package = "" if point.dist is None else point.dist.name
        found.append(Plugin(group, point.name, module.strip(), attribute.strip(), package))
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.package)))


@cache
def _say_taken(plugin: Plugin) -> None:
    _log.warning(
        "%s %r of the package %s is not used: Fedwright has one of that name; write %s to use it",
        plugin.group.noun,
        plugin.name,
        plugin.package,
        plugin.reference,
    )
