"""A run's config: what a good one gives, and one sentence for every mistake."""

from pathlib import Path

import pytest

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.config import config_from_text, load_config
from fedwright.server_runtime.spec import Optimizer

GOOD = """
[run]
name = "first"
rounds = 3

[fleet]
broker = "mqtts://broker.example:8883"
trust = "trust"
devices = 4
per_round = 2

[model]
model = "cnn-small"
input_shape = [1, 8, 8]
classes = 10

[method]
name = "fedavg"

[train]
learning_rate = 1
[train.optimizer]
kind = "adam"
clip_norm = 1
"""


def write(folder: Path, text: str) -> Path:
    """A config file with this text."""
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_a_good_config_becomes_dataclasses(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))

    assert config.run.name == "first"
    assert config.fleet.per_round == 2
    assert config.model.input_shape == (1, 8, 8)
    assert config.train.optimizer == Optimizer(kind="adam", clip_norm=1.0)
    assert config.train.learning_rate == 1.0
    assert config.method.name == "fedavg"
    assert config.server.device == "auto"


def test_a_method_is_all_that_must_be_said(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, '[method]\nname = "fedavg"'))

    assert config.run.rounds == 10
    assert config.model.classes is None


# (what to replace in the good config, by what, how the message goes on after the file's name)
MISTAKES = {
    "not TOML": ('name = "first"', "name = first", " is not TOML: Invalid value (at line 3, column 8)"),
    "unknown section": (
        "[run]",
        "[runs]",
        " has the unknown key 'runs'; did you mean 'run'? valid are budget, engine, export",
    ),
    "section is a value": ("[run]\n", "server = 3\n[run]\n", " [server] must be a table of settings, not 3"),
    "unknown key": ("rounds = 3", "round = 3", " [run] has the unknown key 'round'; did you mean 'rounds'?"),
    "rounds as text": ("rounds = 3", 'rounds = "3"', " [run] rounds is '3' but must be a whole number"),
    "no rounds": ("rounds = 3", "rounds = 0", " [run] rounds is 0 but must be at least 1 and at most"),
    "seed below zero": ("rounds = 3", "seed = -1", " [run] seed is -1 but must be at least 0"),
    "name with a slash": ('name = "first"', 'name = "a/b"', " [run] name 'a/b' must be 1 to 64 of the characters"),
    "empty folder": ("rounds = 3", 'folder = ""', " [run] folder is empty"),
    "broker without scheme": (
        "mqtts://broker.example:8883",
        "broker:1883",
        " [fleet] broker is 'broker:1883' but must look",
    ),
    "broker of another kind": (
        "mqtts://broker",
        "http://broker",
        " [fleet] broker is 'http://broker.example:8883' but",
    ),
    "port out of range": (":8883", ":88883", " [fleet] broker is 'mqtts://broker.example:88883' but must look like"),
    "no devices": ("devices = 4", "devices = 0", " [fleet] devices is 0 but must be at least 1"),
    "ratio above one": (
        "per_round = 2",
        "sample_ratio = 1.5",
        " [fleet] sample_ratio is 1.5 but must be above 0 and at most 1",
    ),
    "two ways to sample": (
        "per_round = 2",
        "per_round = 2\nsample_ratio = 0.5",
        " [fleet] per_round and sample_ratio are both",
    ),
    "mqtts without trust": ('trust = "trust"\n', "", " [fleet] broker is an mqtts address but trust is not set"),
    "buffer zero": ("per_round = 2", "buffer = 0", " [fleet] buffer is 0 but must be at least 1"),
    "asynchronous pairs": (
        GOOD[GOOD.index("per_round") : GOOD.index("[train]")],
        'buffer = 2\n[method]\nname = "hyperflora"\n',
        " [method] hyperflora passes work on inside a round, which asynchronous rounds have no place for; "
        "set pairs = false or remove fleet.buffer",
    ),
    "unknown codec": (
        "[run]",
        '[update]\ncodec = "int16"\n[run]',
        " [update] codec is 'int16'; did you mean 'int8'? valid",
    ),
    "keep nothing": ("[run]", "[update]\nkeep_ratio = 0\n[run]", " [update] keep_ratio is 0.0 but must be above 0"),
    "trim half": ("[run]", '[update]\ncombine = "trimmed_mean"\ntrim_ratio = 0.5\n[run]', " [update] trim_ratio"),
    "no quorum": ("per_round = 2", "quorum_ratio = 0", " [fleet] quorum_ratio is 0.0 but must be above 0"),
    "deadline zero": ("per_round = 2", "deadline_s = 0", " [fleet] deadline_s is 0.0 but must be above 0"),
    "deadline not a number": ("per_round = 2", "deadline_s = nan", " [fleet] deadline_s is nan but must be above 0"),
    "unknown model": (
        '"cnn-small"',
        '"cnn-smal"',
        " [model] model: there is no model 'cnn-smal'; did you mean 'cnn-small'? valid are cnn",
    ),
    "half a python model": (
        '"cnn-small"',
        '"python:mine"',
        " [model] model 'python:mine' must look like python:",
    ),
    "empty model": ('"cnn-small"', '""', " [model] model is empty; choose a name from `fedwright models`"),
    "shape as text": ("[1, 8, 8]", '"8x8"', " [model] input_shape is '8x8' but must be a list of whole numbers"),
    "shape without dimensions": ("[1, 8, 8]", "[]", " [model] input_shape has 0 dimensions but must have 1 to 8"),
    "shape with a zero": ("[1, 8, 8]", "[1, 0]", " [model] input_shape entry is 0 but must be at least 1"),
    "one class": ("classes = 10", "classes = 1", " [model] classes is 1 but must be at least 2"),
    "no method": ('[method]\nname = "fedavg"', "", " lacks the section [method]; name one from `fedwright methods`"),
    "method without name": ('name = "fedavg"', "", " [method] lacks the key 'name'; choose one of "),
    "unknown method": ('"fedavg"', '"fedavgg"', " [method] name: there is no method 'fedavgg'; did you mean 'fedavg'?"),
    "parameter of no method": (
        '"fedavg"',
        '"fedavg"\nmu = 1',
        " [method] has the unknown key 'mu'; valid are width",
    ),
    "learning rate zero": (
        "learning_rate = 1",
        "learning_rate = 0",
        " [train] learning_rate is 0.0 but must be above 0",
    ),
    "no epochs": ("learning_rate = 1", "epochs = 0", " [train] epochs is 0 but must be at least 1"),
    "batch zero": ("learning_rate = 1", "batch = 0", " [train] batch is 0 but must be at least 1"),
    "unknown optimizer": (
        '"adam"',
        '"adamm"',
        " [train] optimizer kind is 'adamm'; did you mean 'adam'? valid are adam, ",
    ),
    "unknown optimizer key": (
        "clip_norm",
        "clipnorm",
        " [train] optimizer has the unknown key 'clipnorm'; did you mean",
    ),
    "negative momentum": (
        "clip_norm = 1",
        "momentum = -1",
        " [train] optimizer.momentum is -1.0 but must be at least 0",
    ),
    "clip at zero": ("clip_norm = 1", "clip_norm = 0", " [train] optimizer.clip_norm is 0.0 but must be above 0"),
    "unknown device": (
        "[run]",
        '[server]\ndevice = "gpu"\n[run]',
        " [server] device is 'gpu'; did you mean 'cpu'? valid are auto, cpu, cuda",
    ),
}


@pytest.mark.parametrize(("good", "bad", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_sentence_that_names_the_key(tmp_path: Path, good: str, bad: str, message: str) -> None:
    assert good in GOOD

    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, GOOD.replace(good, bad, 1)))

    assert str(caught.value).startswith("run.toml" + message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lines", ["pairs = false\n[fleet]\nbuffer = 2", "pairs = true"], ids=["no pairs", "in step"])
def test_pairs_and_asynchronous_rounds_are_fine_apart(tmp_path: Path, lines: str) -> None:
    config = load_config(write(tmp_path, f'[method]\nname = "hyperflora"\n{lines}\n'))

    assert config.method.name == "hyperflora"


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*run\.toml; write one with `fedwright init"):
        load_config(tmp_path / "run.toml")


def test_a_folder_or_binary_file_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match=r"is a folder; give a TOML file, or .*`fedwright server resume "):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read as text"):
        load_config(tmp_path / "binary.toml")


def test_classes_are_a_number_or_names() -> None:
    for given, found in ("3", 3), ('["cat", "dog"]', ("cat", "dog")):
        text = f'[model]\nclasses = {given}\n[method]\nname = "fedavg"\n'
        assert config_from_text(text, where="run.toml").model.classes == found
    with pytest.raises(ConfigError, match=r"\[model\] classes is 'cat' but must be a whole number or a list of texts"):
        config_from_text('[model]\nclasses = "cat"\n[method]\nname = "fedavg"\n', where="run.toml")


def test_steps_and_schedule_are_read_and_a_warm_up_leaves_rounds_to_train(tmp_path: Path) -> None:
    schedule = '[method]\nname = "fedavg"\n[run]\nrounds = {}\n[train]\nsteps = 7\nschedule.warmup_rounds = 3\n'

    config = load_config(write(tmp_path, schedule.format(4)))

    assert (config.train.steps, config.train.schedule.warmup_rounds) == (7, 3)
    with pytest.raises(ConfigError, match="warmup_rounds is 3 but the run has 3 rounds"):
        load_config(write(tmp_path, schedule.format(3)))
