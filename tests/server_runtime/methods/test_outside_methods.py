"""Methods from outside: what a class says of itself, what the config makes of it, and what a class lacks."""

import logging
from pathlib import Path

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg
from fedwright.server_runtime.methods.registry import METHODS, find, offered
from helpers.outside_package import example, install, installed

__all__ = ["example", "installed"]

BY_PACKAGE = "half-step"
BY_PLACE = "python:my_package.half_step:HalfStep"
OTHERS = '''
from dataclasses import dataclass
from fedwright.server_runtime.methods.base import Method
from fedwright.server_runtime.methods.baselines.fedavg import FedAvg


@dataclass(frozen=True)
class Checked:
    share: float = 0.5
    pairs: bool = True

    def __post_init__(self):
        if self.share > 1:
            raise ValueError(f"share is {self.share} but must be at most 1")


class Bare(FedAvg):
    """What it does.

    And more."""


class Talkative(FedAvg):
    params, model, needs_public = Checked, "mlp", True

    @classmethod
    def relays(cls, params):
        return "set pairs = false" if params.pairs else ""


class Half(Method):
    def assign(self, reports, round_number): ...
    def emit(self, device, assignment): ...
    def state(self): ...
    def restore(self, state): ...


class Dictionary(FedAvg):
    params = {"share": 0.5}


class Unrelated:
    pass


number = 3
'''


@pytest.fixture
def others(installed: Path) -> Path:
    """A module with all kinds of classes, beside the installed packages."""
    (installed / "other_methods.py").write_text(OTHERS)
    return installed


@pytest.mark.parametrize("name", [BY_PACKAGE, BY_PLACE])
def test_a_method_is_found_by_the_name_that_its_package_gives_it_and_by_its_place(example: Path, name: str) -> None:
    entry = find(name)

    assert (entry.name, entry.model, entry.needs_public) == (name, "cnn-small", False)
    assert entry.summary == "FedAvg that applies a share of the mean change"
    assert (entry.params().share, entry.relays(entry.params())) == (0.5, "")
    assert entry.method.__name__ == "HalfStep"
    assert dict(entry.start) == {}


def test_an_unknown_method_is_told_those_of_packages_too(example: Path) -> None:
    assert [plugin.name for plugin in offered()] == [BY_PACKAGE]
    with pytest.raises(ConfigError, match=r"there is no method 'half-stepp'; did you mean 'half-step'\? valid are"):
        find("half-stepp")


def test_a_class_that_says_nothing_of_itself_has_defaults(others: Path) -> None:
    entry = find("python:other_methods:Bare")

    assert (entry.summary, entry.model, entry.needs_public) == ("What it does.", "cnn-small", False)
    assert find("python:other_methods:Talkative").summary == "Talkative"
    with pytest.raises(ConfigError, match=r"has the unknown key 'share'; it takes no settings"):
        config_from_text('[method]\nname = "python:other_methods:Bare"\nshare = 1.0\n', where="run.toml")


def test_a_class_that_needs_public_examples_gets_some_in_its_starter_config(others: Path) -> None:
    entry = find("python:other_methods:Talkative")

    assert (entry.model, entry.needs_public) == ("mlp", True)
    assert entry.start == {"public": METHODS["fedmd"].start["public"]}


@pytest.mark.parametrize("name", [BY_PACKAGE, BY_PLACE])
def test_a_config_checks_the_settings_of_a_method_from_outside(example: Path, name: str) -> None:
    config = config_from_text(f'[method]\nname = "{name}"\nshare = 0.7\n', where="run.toml")

    assert (config.method.name, config.method.params.share) == (name, 0.7)
    with pytest.raises(ConfigError, match=r"^run.toml \[method\] has the unknown key 'shar'; did you mean 'share'\?"):
        config_from_text(f'[method]\nname = "{name}"\nshar = 0.7\n', where="run.toml")
    with pytest.raises(ConfigError, match=r"^run.toml \[method\] share is 'all' but must be a number$"):
        config_from_text(f'[method]\nname = "{name}"\nshare = "all"\n', where="run.toml")


def test_the_checks_of_its_own_settings_are_one_sentence(others: Path) -> None:
    with pytest.raises(ConfigError, match=r"^run.toml \[method\] share is 2.0 but must be at most 1$"):
        config_from_text('[method]\nname = "python:other_methods:Talkative"\nshare = 2.0\n', where="run.toml")


def test_a_method_with_relays_has_no_place_in_asynchronous_rounds(others: Path) -> None:
    text = '[method]\nname = "python:other_methods:Talkative"\n{}[fleet]\nbuffer = 2\n'

    with pytest.raises(ConfigError, match=r"set pairs = false or remove fleet.buffer"):
        config_from_text(text.format(""), where="run.toml")
    assert config_from_text(text.format("pairs = false\n"), where="run.toml").fleet.buffer == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unrelated", "it is no subclass of fedwright.server_runtime.methods.base.Method; derive it from that"),
        ("number", "it is no subclass of fedwright.server_runtime.methods.base.Method; derive it from that"),
        ("Half", "it lacks absorb, advance, model_of; a method must have them"),
        ("Dictionary", "its `params` is no dataclass; write one with a default for each setting"),
    ],
)
def test_a_class_that_is_no_method_says_what_it_lacks(others: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as found:
        config_from_text(f'[method]\nname = "python:other_methods:{name}"\n', where="run.toml")

    assert str(found.value) == f"run.toml [method] name: method 'python:other_methods:{name}': {said}"


def test_a_method_of_ours_is_taken_before_one_of_that_name_from_outside(
    installed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(installed, "bold", {"fedwright.methods": {"fedavg": "bold:FedAvg"}}, {})

    with caplog.at_level(logging.WARNING):
        assert find("fedavg").method is FedAvg
        assert find("fedavg").method is FedAvg

    assert [message.partition(" is not used")[0] for message in caplog.messages] == [
        "method 'fedavg' of the package bold"
    ]
