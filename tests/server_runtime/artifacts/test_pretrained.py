"""A run that begins with weights from a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime import zoo
from fedwright.server_runtime.artifacts.builder import initial_weights
from fedwright.server_runtime.check_run import check_server
from fedwright.server_runtime.method_setting import make_method
from fedwright.server_runtime.spec import ModelSpec
from fedwright.simulation.simulate import simulate
from helpers.simulation import make_config

SPEC = ModelSpec("cnn-small", (1, 8, 8), 10)


def weights(spec: ModelSpec = SPEC) -> dict[str, np.ndarray]:
    return {name: value + 1 for name, value in initial_weights(zoo.create(spec, seed=5)).items()}


def write(folder: Path, found: dict[str, np.ndarray], *, dtype: torch.dtype = torch.float32, prefix: str = "") -> str:
    file = folder / "start.safetensors"
    save_file({prefix + name: torch.from_numpy(value).to(dtype) for name, value in found.items()}, file)
    return str(file)


def begin(folder: Path, file: str, spec: ModelSpec = SPEC, **more: Any) -> Any:
    config, _ = make_config(folder, model={"model": spec.model, "weights": file}, **more)
    return make_method(config, spec)


@pytest.mark.parametrize(
    ("dtype", "prefix"),
    [(torch.float32, ""), (torch.bfloat16, ""), (torch.float32, "base_model.model.")],
    ids=["float32", "bfloat16", "saved by PEFT"],
)
def test_the_weights_are_the_files(tmp_path: Path, dtype: torch.dtype, prefix: str) -> None:
    given = weights()
    method = begin(tmp_path, write(tmp_path, given, dtype=dtype, prefix=prefix))
    for name, value in method.model_of("")[1].items():
        np.testing.assert_allclose(value, given[name], rtol=1e-2)


@pytest.mark.parametrize("method", ["fedavg", "hasa", "framp", "fiarse", "pfedhn", "fedconv"])
def test_methods_begin_with_it(tmp_path: Path, method: str) -> None:
    given = weights()
    born = begin(tmp_path, write(tmp_path, given), method={"name": method})
    found = born.model_of("")[1]
    np.testing.assert_allclose(found["head.bias"], given["head.bias"], atol=0.05)


def test_a_classifier_of_other_classes_begins_anew(tmp_path: Path) -> None:
    given = weights(ModelSpec("cnn-small", (1, 8, 8), 7))
    found = begin(tmp_path, write(tmp_path, given)).model_of("")[1]
    assert found["head.weight"].shape[0] == 10
    name = next(name for name in given if not name.startswith("head"))
    np.testing.assert_array_equal(found[name], given[name])


def test_a_run_goes_on_from_it(tmp_path: Path) -> None:
    file = write(tmp_path, weights())
    config, text = make_config(tmp_path / "run", model={"model": "cnn-small", "weights": file}, simulate={"rows": 120})
    assert all(record.rounds == 2 for record in simulate(config, text).outcome.devices.values())


def test_files_that_are_no_start(tmp_path: Path) -> None:
    missing, _ = make_config(tmp_path, model={"model": "cnn-small", "weights": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match=r"the weights cannot be read from .*none.*give a safetensors file"):
        check_server(missing)
    (tmp_path / "text").write_text("no tensors")
    odd, _ = make_config(tmp_path, model={"model": "cnn-small", "weights": str(tmp_path / "text")})
    with pytest.raises(ConfigError, match=r"the weights cannot be read from .*text"):
        check_server(odd)
    other = weights(ModelSpec("cnn-small", (3, 8, 8), 10))
    with pytest.raises(ConfigError, match=r"has shape .* for encoder.*where the model has shape"):
        begin(tmp_path, write(tmp_path, other))
    with pytest.raises(ConfigError, match="has no such tensor for encoder"):
        begin(tmp_path, write(tmp_path, {"stranger": np.zeros(3, np.float32)}))
