"""What a server does for long by itself is told step by step: graphs, pre-training, tuning."""

from pathlib import Path
from typing import Any

import pytest

from fedwright.protocol.support.steps import listening
from fedwright.simulation.simulate import simulate
from helpers.simulation import make_config, public_file

EPOCHS = ("pretrain_epochs", "compress_epochs", "again_epochs", "dilate_epochs", "weigh_epochs")
FEDCONV = {"levels": {"sizes": [1.0, 0.5], "choose": "in_turn"}, **dict.fromkeys(EPOCHS, 2)}
TOLD = {
    "planning for devices": 4,
    "training on public examples": 2,
    "tuning the compression": 2,
    "tuning the dilation": 2,
    "tuning the weights of the sum": 2,
}
PFEDCLUB = {"own": {"models": ["cnn-small", "mlp"]}}


@pytest.mark.parametrize(
    ("method", "params", "told"),
    [
        ("fedconv", FEDCONV, TOLD),
        ("pfedclub", PFEDCLUB, {"planning for devices": 4, "tuning teachers": 4, "tuning stitches": 3}),
    ],
)
def test_the_servers_own_work_is_told_from_its_first_step_to_its_last(
    tmp_path: Path, method: str, params: dict[str, Any], told: dict[str, int]
) -> None:
    public = public_file(tmp_path)
    config, text = make_config(tmp_path, rounds=1, method={"name": method, **params}, public=public)
    heard: dict[str, list[tuple[int, int]]] = {}

    with listening(lambda what, done, of: heard.setdefault(what, []).append((done, of))):
        simulate(config, text)

    for what, count in told.items():
        assert heard[what][0] == (0, count), what
        assert (1, count) in heard[what], what
        assert heard[what][-1] == (count, count), what
