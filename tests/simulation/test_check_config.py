"""`fedwright validate` finds what a run would find."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwright.api.starter import starter_config
from fedwright.cli.main import main
from fedwright.server_runtime import needed_packages
from fedwright.server_runtime.config import config_from_text
from fedwright.server_runtime.methods.registry import METHODS
from fedwright.simulation.check_config import check_simulation, check_stand_in
from helpers.simulation import make_config

OWN = 'model = "python:helpers.own_module:{}"'
SMALL = '[simulate]\ndevices = 4\nrows = 200\npartition = "iid"\n'

Say = Callable[[str], tuple[int, str]]


@pytest.fixture
def validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """The exit code of `validate` for a config, and what it said."""

    def run(text: str, name: str = "run.toml") -> tuple[int, str]:
        (tmp_path / name).write_text(text)
        code = main(["validate", str(tmp_path / name)])
        return code, "".join(capsys.readouterr())

    return run


@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_init_writes_goes_together(method: str) -> None:
    config = config_from_text(starter_config(METHODS[method]), where="init")

    assert check_simulation(config) == []
    check_stand_in(config)


@pytest.mark.parametrize(
    ("method", "rest", "said"),
    [
        ("fedavg", f"[model]\n{OWN.format('nothing')}", "module 'helpers.own_module' has no 'nothing'"),
        ("fedavg", '[model]\nmodel = "python:no_such_pkg:make"', "there is no module 'no_such_pkg' in this folder, "),
        ("hasa", f"[model]\n{OWN.format('make_tangled')}", "can only be used whole"),
        ("fedavg", f"[model]\n{OWN.format('make')}\ninput_shape = [7]", "for samples of shape [7]"),
        ("hyperflora", '[model]\nmodel = "cnn-small"', "model cnn-small has no adapters"),
        ("pfedclub", '[method.own]\nmodels = ["cnn9"]\n[public]\nrows = 60', "unknown model 'cnn9'"),
        ("scalefl", '[model]\nmodel = "lenet"', "needs a model of the zoo with exits but lenet has none"),
        ("fedmd", "", "method fedmd needs examples on the server"),
        ("fedavg", '[public]\nfile = "absent.npz"', "public.file absent.npz cannot be read"),
        ("fedavg", '[fleet]\ntrust = "absent"', "absent holds no usable authority"),
        ("fedavg", '[simulate]\ndataset = "nosuch"', "unknown data set 'nosuch'"),
        ("fedavg", '[simulate]\npartition = "shards"\ndevices = 7', "7 devices with 2 shards each cannot share 10"),
        ("fedavg", "[simulate]\ndevices = 5000", "1797 rows cannot give 5000 devices"),
        ("fedavg", '[simulate]\nprofiles = "nosuch"', "nosuch"),
        ("fedavg", f"[model]\ninput_shape = [1, 28, 28]\n{SMALL}", "model.input_shape is [1, 28, 28] but digits has"),
        ("fedavg", f"[model]\nclasses = 5\n{SMALL}", "model.classes is 5 but digits has 10"),
        ("fedavg", '[fleet]\nbroker = "http://host"', "must look like mqtt://host:1883"),
        ("fedavg", '[model]\nmodel = "onnx:absent.onnx"', "model onnx:absent.onnx cannot be read: No such file"),
        ("fedavg", '[train]\ntrainable = ["layer99.*"]', "trainable has 'layer99.*', which no parameter"),
        ("fedavg", '[simulate]\ndata = "text:absent.txt"', "data path 'absent.txt' does not exist"),
        ("fedavg", f'[simulate]\ndata = "text:{__file__}"', "window is missing; give it as a whole number"),
        ("hasa", "secure_sum = true\n[fleet]\ndevices = 2", "fleet.devices is 2; set it to 3 or more"),
        ("hasa", "secure_sum = true\n[fleet]\ndevices = 3\n[simulate]\ndevices = 2", "simulate.devices is 2"),
    ],
)
def test_a_mistake_is_one_sentence(method: str, rest: str, said: str, validate: Say) -> None:
    code, text = validate(f'[method]\nname = "{method}"\n{rest}\n')

    assert (code, text.count("\n")) == (1, 1), text
    assert said in text


def test_a_model_for_real_devices_need_not_suit_the_simulation_that_init_wrote(validate: Say) -> None:
    code, text = validate('[method]\nname = "fedavg"\n[model]\nmodel = "cnn3"\n')

    assert code == 0
    assert "note: `fedwright simulate` would not run: model cnn3 reads images" in text


def test_data_that_would_be_downloaded_is_not_fetched(
    validate: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDWRIGHT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    code, text = validate('[method]\nname = "fedavg"\n[simulate]\ndataset = "mnist"\n')

    assert code == 0
    assert "note: data set mnist is downloaded when it is used" in text
    assert not (tmp_path / "cache").exists()


def test_a_public_file_says_what_the_model_is_made_for(validate: Say, tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", x=np.zeros((20, 9), np.float32), y=np.arange(20) % 3)

    code, text = validate(
        f'[method]\nname = "fedmd"\n[model]\nmodel = "mlp"\n[public]\nfile = "{tmp_path}/public.npz"\n'
    )

    assert code == 0, text
    assert "would not run: public data has samples of shape [9]" in text


def test_the_config_of_an_edge_is_checked_too(validate: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "edge"]) == 0
    text = capsys.readouterr().out

    assert validate(text, "edge.toml")[0] == 0
    code, said = validate(text.replace("# bundle =", 'bundle = "absent"'), "edge.toml")
    assert code == 1
    assert "bundle.json is missing" in said
    assert "[cluster] has the unknown key" in validate(text.replace("most = ", "mots = "), "edge.toml")[1]


def test_a_server_says_it_before_it_waits_for_anybody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f'[run]\nfolder = "{tmp_path}"\n[method]\nname = "fedavg"\n[fleet]\nbroker = "mqtt://nowhere.invalid:1"\n'
    (tmp_path / "run.toml").write_text(text + '[public]\nfile = "absent.npz"\n')

    assert main(["server", "run", str(tmp_path / "run.toml")]) == 1

    assert "public.file absent.npz cannot be read" in capsys.readouterr().err


NEEDS = [
    ("privacy", 'kind = "central"\nepsilon = 4.0', "privacy.kind is central", "dp_accounting", "private"),
    ("store", 'rounds = "postgresql://ann@host/runs"', "store.rounds is a database", "psycopg", "postgres"),
    ("store", 'blobs = "s3://bucket/runs"', "store.blobs is s3://bucket/runs", "obstore", "s3"),
    ("engine", 'kind = "ray"', "engine.kind is ray", "ray", "ray"),
]


@pytest.mark.parametrize("need", NEEDS, ids=[need[3] for need in NEEDS])
def test_a_package_that_is_missing_is_named(
    need: tuple[str, ...], validate: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, rest, said, package, extra = need
    monkeypatch.setattr(needed_packages, "find_spec", lambda name: None if name == package else object())

    code, text = validate(f'[method]\nname = "fedavg"\n[{section}]\n{rest}\n')

    assert (code, text.count("\n")) == (1, 1), text
    assert f'{said}, which needs the package {package}; install it with pip install "fedwright[{extra}]"' in text


def test_a_simulation_that_nobody_can_account_for_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(needed_packages, "find_spec", lambda name: None)
    _, text = make_config(tmp_path, simulate={"devices": 4, "rows": 200}, privacy={"kind": "central", "epsilon": 4.0})
    (tmp_path / "run.toml").write_text(text)

    assert main(["simulate", str(tmp_path / "run.toml")]) == 1

    assert "needs the package dp_accounting" in capsys.readouterr().err
    assert list(tmp_path.glob("*/rounds.sqlite")) == []


@pytest.mark.parametrize("command", ["validate", "simulate", "server run"])
@pytest.mark.parametrize("place", ["run", "folder"])
def test_a_file_in_the_place_of_the_run_is_named(
    command: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    names = {"run": f'folder = "{tmp_path}"\nname = "taken"', "folder": f'folder = "{taken}"'}
    (tmp_path / "run.toml").write_text(f'[run]\n{names[place]}\n[method]\nname = "fedavg"\n')
    (tmp_path / "taken.simulated").write_text("")

    assert main([*command.split(), str(tmp_path / "run.toml")]) == 1

    said = capsys.readouterr().err
    assert "which is a file; change run.folder or run.name" in said
    assert said.count("\n") == 1


def test_a_simulation_too_small_to_hide_anything_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = make_config(
        tmp_path,
        method={"name": "hasa", "secure_sum": True},
        simulate={"devices": 2, "rows": 60, "least": 2, "hide_counts": True},
    )
    (tmp_path / "run.toml").write_text(text)

    assert main(["simulate", str(tmp_path / "run.toml")]) == 1

    assert "the number of simulated devices is 2; set it to 3 or more" in capsys.readouterr().err
