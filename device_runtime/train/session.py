"""Sessions of the stock onnxruntime, set up the way training graphs need them."""

import ctypes
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime as ort

from fedwright.device_runtime import facts
from fedwright.device_runtime.train.base import Array, Tensors
from fedwright.device_runtime.train.native import RUNTIME_ERRORS
from fedwright.protocol.artifact import AGAIN, EDGES, TensorSpec
from fedwright.protocol.errors import BadArtifact, BadBlob, ConfigError, DataError, DeviceError, OverBudget
from fedwright.protocol.onnx_outline import scan

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

_NO_MEMORY = re.compile(r"Failed to allocate memory(?: for requested buffer of size (\d+))?|bad[_ ]alloc")

# Of matrices that are stored in few bits.
_PACKED = ("tensor(int8)", "tensor(uint8)")

_DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}

# A graph of one Identity: running it is how the shared arena is told to give memory back.
_IDENTITY = bytes.fromhex(
    "08083a2f0a100a016112016222084964656e746974791201695a0b0a016112060a0408011200620b0a016212060a040801120042040a001011"
)


# Where sessions made in this thread write a trace of their operators; see `traced`.
_tracing = threading.local()

# Many trainers may live in one process, each in its thread; the arena is registered once.
_lock = threading.Lock()


def pick_provider(provider: str) -> str:
    """The execution provider by its short or full name; `auto` is CUDA where this onnxruntime has it, else the CPU."""
    available = ort.get_available_providers()
    if provider == "auto":
        return CUDA if CUDA in available else CPU
    wanted = {"cpu": CPU, "cuda": CUDA}.get(provider, provider)
    if wanted not in available:
        raise ConfigError(
            f"execution provider {wanted!r} is not in this onnxruntime, which has {', '.join(available)}; give another"
            " --provider, or install onnxruntime-gpu for cuda"
        )
    return wanted


def device_type(session: ort.InferenceSession) -> str:
    """Where a session keeps its tensors; onnxruntime itself falls back to the CPU when CUDA does not start."""
    return "cuda" if session.get_providers()[0] == CUDA else "cpu"


def open_session(
    graph: bytes, *, what: str, threads: int, provider: str, frozen: dict[str, ort.OrtValue]
) -> ort.InferenceSession:
    """A lean session: no memory pattern (peak RSS), no spinning (shared cores), frozen tensors supplied from memory."""
    # Made before any large session, so that its own few bytes do not lie in a region that is to be given back.
    with _lock:
        _shrinker()
    options = _options(threads)
    trace = getattr(_tracing, "prefix", None)
    if trace is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(trace)
    # ALL would add NCHWc reorders around pooling, which cost more than they save in a training graph.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    if frozen:
        # onnxruntime refuses a name that the graph does not have, and evaluation may read fewer than training.
        wanted = [tensor.name for tensor in scan(graph, what=what).initializers if tensor.name in frozen]
        options.add_external_initializers(wanted, [frozen[name] for name in wanted])
        # Told so too, it computes with these very tensors, which may lie in a mapped file, and makes no copy.
        for name in wanted:
            options.add_initializer(name, frozen[name])
        # Its plan of reuse keeps some buffers of every shape, and what unpacks has many large ones: 4-bit matrices took
        # three times what they need. Without it each goes back to the arena when it was read last.
        options.enable_mem_reuse = not any(frozen[name].data_type() in _PACKED for name in wanted)
    if provider == CPU:
        # Imported late: it reads the shapes of a graph by rules that a waiting agent need not hold.
        from fedwright.device_runtime.train.blocked import block_convolutions

        graph = block_convolutions(graph, what=what)
    providers = [provider] if provider == CPU else [provider, CPU]
    try:
        # Without the retry of its Python half, which prints.
        return ort.InferenceSession(
            graph, options, providers=providers, enable_fallback=0, disabled_optimizers=_unwanted(graph)
        )
    except (*RUNTIME_ERRORS, ValueError) as err:
        if _NO_MEMORY.search(str(err)):
            raise failure(what, err, need_bytes=len(graph)) from err
        raise BadArtifact(f"onnxruntime {ort.__version__} cannot load {what}: {first_line(err)}") from err


def _unwanted(graph: bytes) -> list[str]:
    """What would merge values that are made again with the first ones, which then stay in memory."""
    return ["CommonSubexpressionElimination"] if AGAIN.encode() + b"/" in graph else []


@contextmanager
def traced(prefix: Path) -> Iterator[None]:
    """Sessions that this thread opens inside the block record the time of every operator in a file."""
    _tracing.prefix = prefix
    try:
        yield
    finally:
        _tracing.prefix = None


def _options(threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.enable_mem_pattern = False
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Fatal only: errors come as exceptions, and once is enough.
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


def _share_arena() -> None:
    """One arena for all sessions, so that training and evaluation use the same memory.

    It grows by powers of two: regions of just the size asked for cannot be joined again, which for deep nets takes a
    sixth more resident memory.
    """
    config = ort.OrtArenaCfg(
        {
            "max_mem": 0,
            "arena_extend_strategy": 0,
            "initial_chunk_size_bytes": -1,
            "max_dead_bytes_per_chunk": -1,
        }
    )
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, config)


@cache
def _shrinker() -> tuple[ort.InferenceSession, ort.IOBinding, ort.RunOptions]:
    _share_arena()
    session = ort.InferenceSession(_IDENTITY, _options(1), providers=[CPU])
    # Bound to memory of its own, because an output inside the arena would pin what is to be given back.
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", ort.OrtValue.ortvalue_from_numpy(np.zeros((), np.float32)))
    binding.bind_ortvalue_output("b", ort.OrtValue.ortvalue_from_numpy(np.zeros((), np.float32)))
    run = ort.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return session, binding, run


def release_memory() -> None:
    """Give the memory of the arena that no session uses back to the system."""
    with _lock:
        session, binding, run = _shrinker()
        session.run_with_iobinding(binding, run)
    # glibc keeps what is freed below its sliding threshold (up to 32 MB a piece) unless told to let go.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class RunInterrupt:
    """Ends runs that were begun with its options, between two operators, also inside a Scan."""

    def __init__(self) -> None:
        self.options = ort.RunOptions()
        # Fatal only: errors come as exceptions.
        self.options.log_severity_level = 4
        # No graph of a GPU is recorded. Left unsaid, onnxruntime looks for it at every run and raises inside.
        self.options.add_run_config_entry("gpu_graph_id", "-1")

    def set(self) -> None:
        """End what runs."""
        self.options.terminate = True

    def clear(self) -> None:
        """Runs may begin again."""
        self.options.terminate = False


def failure(what: str, err: BaseException, *, need_bytes: int) -> DeviceError:
    """What a failed run means: OverBudget when memory ran out, else what onnxruntime said."""
    short = _NO_MEMORY.search(str(err))
    if short is None:
        return DeviceError(f"{what} failed in onnxruntime: {first_line(err)}")
    free = facts.free_bytes()
    return OverBudget(max(need_bytes, free + int(short[1] or 1)), free)


def first_line(err: BaseException) -> str:
    """The first line of an error, which is what fits into one sentence."""
    return str(err).strip().split("\n", 1)[0][:300]


def scalar_buffer(session: ort.InferenceSession, name: str) -> ort.OrtValue:
    """Room for a scalar output such as the loss."""
    for output in session.get_outputs():
        if output.name == name:
            dtype = _DTYPES.get(output.type)
            if dtype is None or any(size != 1 for size in output.shape):
                raise BadArtifact(f"output {name} must be one number but is {output.type} of shape {output.shape}")
            return ort.OrtValue.ortvalue_from_numpy(np.zeros(output.shape, dtype))
    raise BadArtifact(f"train.onnx has no output {name}; build the artifact again")


def checked(tensors: Tensors, specs: Sequence[TensorSpec], *, what: str) -> Tensors:
    """The tensors if their names, shapes and dtypes are exactly what the manifest says, else BadBlob."""
    names = {spec.name for spec in specs}
    missing, extra = sorted(names - set(tensors)), sorted(set(tensors) - names)
    if missing or extra:
        raise BadBlob(
            f"{what} do not fit the artifact: missing {missing[:5]}, unexpected {extra[:5]}; "
            f"send the tensors the manifest names"
        )
    for spec in specs:
        found = tensors[spec.name]
        if not _fits(found, spec):
            raise BadBlob(
                f"{what}: {spec.name} is {found.dtype} {list(found.shape)} "
                f"but the artifact says {spec.dtype} {list(spec.shape)}"
            )
    return {spec.name: tensors[spec.name] for spec in specs}


def batch_array(batch: Tensors, spec: TensorSpec) -> Array:
    """The array a graph input takes: of the manifest's type, contiguous, shape checked."""
    if spec.name == EDGES and spec.name not in batch:
        raise DataError("the model reads edges between samples but this device's data has none; use graph:file.npz")
    if spec.name not in batch:
        raise DataError(f"batch has no {spec.name!r}; it has {sorted(batch)}")
    if np.dtype(spec.dtype).kind in "iu" and batch[spec.name].dtype.kind == "f":
        raise DataError(
            f"batch input {spec.name!r} holds fractions ({batch[spec.name].dtype}) but the model takes whole numbers "
            f"({spec.dtype}); save word numbers as integers"
        )
    array = np.ascontiguousarray(batch[spec.name], dtype=spec.dtype)
    if not _fits(array, spec) or (array.shape[:1] == (0,) and spec.name != EDGES):
        raise DataError(
            f"batch input {spec.name!r} has shape {list(array.shape)} but the model takes {list(spec.shape)}; "
            f"check the data's shape against the run's input_shape"
        )
    return array


def _fits(array: Array, spec: TensorSpec) -> bool:
    if array.dtype != np.dtype(spec.dtype) or array.ndim != len(spec.shape):
        return False
    return all(want in (-1, have) for want, have in zip(spec.shape, array.shape, strict=True))
