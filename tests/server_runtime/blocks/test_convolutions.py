"""Convolutions leave memory alone and say the same as float64, whichever vectors the processor has."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedwright.server_runtime.artifacts.export import export
from fedwright.server_runtime.blocks.convolutions import use_safe_convolutions
from fedwright.server_runtime.spec import ModelSpec
from helpers import convolution_sweep
from helpers.present import present
from helpers.tools import missing

CHECKER = "libc_malloc_debug.so.0"
SWEPT = f"{len(list(convolution_sweep.cases()))} cases\n"


def sweep(preparation: str, *, threads: int, vectors: str) -> subprocess.CompletedProcess[str]:
    """The sweep in a process whose memory glibc checks at every free."""
    # In a process of its own: what replaces malloc does not belong into this one.
    loaded = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({CHECKER!r})"]
    if subprocess.run(loaded, capture_output=True, check=False).returncode:
        missing(f"{CHECKER} is not on this system (it is part of glibc 2.34 and later), so damage would not be seen")
    watched = {
        "LD_PRELOAD": CHECKER,
        "GLIBC_TUNABLES": "glibc.malloc.check=3",
        "OMP_NUM_THREADS": str(threads),
        # Threads that wait for work would keep the other processes of a busy machine from it.
        "OMP_WAIT_POLICY": "PASSIVE",
        "ONEDNN_MAX_CPU_ISA": vectors,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, convolution_sweep.__file__, preparation, str(threads)]
    return subprocess.run(command, env=os.environ | watched, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.parametrize(
    ("preparation", "threads", "vectors"),
    [
        ("a model is made", 1, "AVX2"),
        ("a module is tuned", 2, "AVX2"),
        ("a module is tuned", 1, "DEFAULT"),
    ],
)
def test_no_convolution_damages_memory(preparation: str, threads: int, vectors: str) -> None:
    done = sweep(preparation, threads=threads, vectors=vectors)
    assert (done.returncode, done.stdout) == (0, SWEPT), done.stderr


def test_damage_would_be_seen() -> None:
    done = sweep("overrun", threads=1, vectors="DEFAULT")
    assert done.returncode == -signal.SIGABRT
    assert "free(): invalid pointer" in done.stderr


@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (3, 6, 8)], ids=["batch", "single"])
@pytest.mark.parametrize("padding", [0, "valid"])
def test_every_second_point_is_convolved(shape: tuple[int, ...], padding: int | str) -> None:
    use_safe_convolutions()
    layer, x = nn.Conv2d(3, 5, 1, (2, 3), padding), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    weight, bias = layer.weight.detach()[:, :, 0, 0], present(layer.bias).detach()
    expected = torch.einsum("oc,...chw->...ohw", weight, x[..., ::2, ::3]) + bias[:, None, None]
    torch.testing.assert_close(layer(x).detach(), expected)


def test_errors_stay_torchs() -> None:
    use_safe_convolutions()
    x, weight = torch.zeros(1, 3, 4, 4), torch.zeros(3, 3, 1, 1)
    with pytest.raises(RuntimeError, match="strided convolutions"):
        functional.conv2d(x, weight, None, 2, "same")
    with pytest.raises(RuntimeError, match="output padding must be smaller"):
        functional.conv_transpose2d(x, weight, None, 2, 0, 2)


def test_exported_graphs_keep_their_stride() -> None:
    use_safe_convolutions()
    module = nn.Sequential(nn.Conv2d(3, 4, 1, 2), nn.Flatten(), nn.Linear(16, 2))
    graph = export(module, ModelSpec("python:own:make", (3, 4, 4), 2), training=True).graph
    convolution = next(node for node in graph.nodes if node.op == "Conv")
    assert list(convolution.attrs["strides"]) == [2, 2]
