"""Names from outside: where they are looked for, when they are imported, and what each mistake is told."""

import logging
import sys
from pathlib import Path

import pytest

from fedwright.protocol.errors import ConfigError, DataError
from fedwright.protocol.support import plugins
from helpers.outside_package import install, installed

__all__ = ["installed"]

THINGS = plugins.PluginKind("fedwright.methods", "method")


@pytest.fixture
def here(tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which Python does not look into by itself, as under an installed script."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(folder))])
    return folder


def test_a_reference_is_found_in_the_current_folder_with_what_it_imports(here: Path) -> None:
    (here / "outside_one.py").write_text("import outside_two\nclass Thing:\n    inner = outside_two.VALUE\n")
    (here / "outside_two.py").write_text("VALUE = 7\n")

    assert plugins.parse(THINGS, "python:outside_one:Thing").load().inner == 7
    assert plugins.parse(THINGS, "python:outside_one:Thing.inner").load() == 7


def test_an_offer_is_known_by_name_and_imported_only_when_it_is_loaded(installed: Path) -> None:
    files = {"offering.py": "VALUE = 7\n"}
    install(installed, "some-package", {THINGS.name: {"seven": "offering:VALUE"}}, files)

    [plugin] = plugins.offered(THINGS, taken=())

    assert (plugin.name, plugin.package, plugin.reference) == ("seven", "some-package", "python:offering:VALUE")
    assert plugin == plugins.find(THINGS, "seven", taken=("eight",))
    assert plugins.find(THINGS, "eight", taken=()) is None
    assert "offering" not in sys.modules
    assert plugin.load() == 7


def test_a_name_of_ours_stays_ours_and_is_said_once(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(installed, "cheeky", {THINGS.name: {"fedavg": "cheeky:Other", "free": "cheeky:Free"}}, {})

    with caplog.at_level(logging.WARNING):
        assert [plugin.name for plugin in plugins.offered(THINGS, taken={"fedavg"})] == ["free"]
        assert plugins.find(THINGS, "fedavg", taken={"fedavg"}) is None
        assert plugins.find(THINGS, "fedavg", taken={"fedavg"}) is None

    [said] = caplog.messages
    assert said == (
        "method 'fedavg' of the package cheeky is not used: Fedwright has one of that name; "
        "write python:cheeky:Other to use it"
    )


def test_a_name_that_two_packages_offer_is_nobodys(installed: Path) -> None:
    for package in ("one", "two"):
        install(installed, package, {THINGS.name: {"same": f"{package}:Thing"}}, {})

    with pytest.raises(ConfigError, match=r"'same' is offered by one and two; write python:one:Thing, or uninstall"):
        plugins.find(THINGS, "same", taken=())


@pytest.mark.parametrize("name", ["python:", "python:module", "python::name", "python:module:", "python:a:b:c"])
def test_half_a_reference_is_told_the_form(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^method '{name}' must look like python:module:name$"):
        plugins.find(THINGS, name, taken=())


BROKEN = "import no_such_dependency\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent_module:Thing", r"there is no module 'absent_module' in this folder, {here}, nor is it installed; "),
        ("outside_one.absent:Thing", r"there is no module 'outside_one.absent' in this folder, "),
        ("outside_one:Thin", r"module 'outside_one' has no 'Thin'; did you mean 'Thing'\?$"),
        ("outside_one:Thing.absent", r"module 'outside_one' has no 'Thing.absent'$"),
        ("broken:Thing", r"module 'broken' cannot be imported \(ModuleNotFoundError: No module named 'no_such_dep"),
        ("misspelt:Thing", r"module 'misspelt' cannot be imported \(SyntaxError: "),
    ],
)
def test_what_cannot_be_loaded_says_why(here: Path, name: str, said: str) -> None:
    (here / "outside_one.py").write_text("class Thing: ...\n")
    (here / "broken.py").write_text(BROKEN)
    (here / "misspelt.py").write_text("clas Thing: ...\n")

    with pytest.raises(ConfigError, match=said.format(here=here)):
        plugins.parse(THINGS, f"python:{name}").load()


def test_an_offer_that_cannot_be_loaded_names_its_package(installed: Path) -> None:
    points = {"broken": "broken:Thing", "bare": "broken", "absent": "absent_module:Thing"}
    install(installed, "some-package", {THINGS.name: points}, {"broken.py": BROKEN})
    broken, bare, absent = (plugins.find(THINGS, name, taken=()) for name in ("broken", "bare", "absent"))
    assert broken is not None
    assert bare is not None
    assert absent is not None

    with pytest.raises(ConfigError, match=r"^method 'broken' of the package some-package: module 'broken' cannot be"):
        broken.load()
    with pytest.raises(ConfigError, match=r"it names the module 'broken'; write module:name$"):
        bare.load()
    with pytest.raises(ConfigError, match=r"^method 'absent' of the package some-package: there is no module"):
        absent.load()


def test_a_group_says_which_error_its_mistakes_are() -> None:
    with pytest.raises(DataError, match=r"^data source 'python:rows' must look like"):
        plugins.find(plugins.SOURCES, "python:rows", taken=())
