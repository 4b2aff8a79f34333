"""The project's structural rules, each a function from one parsed module to the sentences that say what breaks it."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
HEAVY = {"torch", "torchvision", "onnx", "sklearn", "scipy", "matplotlib", "rich", "cryptography", "amqtt"}
DEVICE_PACKAGES = {"numpy", "onnxruntime", "paho", "msgspec", "safetensors", "psutil", "cryptography"}
# Imported lazily, where the user installed the extra that brings it.
OPTIONAL = {
    "fedwright.device_runtime.data.images": {"PIL"},
    "fedwright.device_runtime.facts": {"jtop"},
    "fedwright.protocol.link.broker_child": {"amqtt", "pwdlib"},
    "fedwright.protocol.support.metrics": {"prometheus_client"},
}
# They run in the environment of the system that is compared with.
ELSEWHERE = {f"fedwright.benchmarks.peers.flower_app.{side}_app" for side in ("client", "server")} | {
    "fedwright.benchmarks.processes.onnx_in_jax"
}
# Ray changes this process for good when it is imported; tests/e2e/test_ray.py imports them.
WITH_RAY = {"fedwright.server_runtime.engine.ray_executor", "fedwright.simulation.ray_pool"}
# Plain settings that a command's help shows.
LIGHT = "fedwright.device_runtime.config"
# Newer than Python 3.10, the oldest a device may have; an import inside a function is guarded by its caller.
TOO_NEW = {"tomllib"}
# Types of the standard library that take a type in brackets only from Python 3.11 on; mypy knows of no difference.
PLAIN_IN_3_10 = {"StreamHandler", "LoggerAdapter"}
SIDES = tuple(f"fedwright.{name}" for name in ("device_runtime", "server_runtime", "simulation", "benchmarks"))
DEVICE_SIDE = ("fedwright.protocol", "fedwright.device_runtime", "fedwright.cli.main", "fedwright.cli.device")

# What modules below the key may import from the package; the longest matching key counts.
MAY_IMPORT = {
    "fedwright.protocol": ("fedwright.protocol",),
    "fedwright.device_runtime": ("fedwright.device_runtime", "fedwright.protocol"),
    "fedwright.server_runtime": ("fedwright.server_runtime", "fedwright.protocol"),
    "fedwright.server_runtime.blocks": ("fedwright.server_runtime.blocks", "fedwright.protocol"),
}
# The server's own packages and modules, from the bottom up: each imports only from those before it, and from itself.
SERVER_LAYERS = [
    "seeds",
    "spec",
    "model_names",
    "public_data",
    "blocks",
    "config_sections",
    "engine",
    "zoo",
    "artifacts",
    "evaluate",
    "methods",
    "fleet",
    "config",
    "transport",
    "object_store",
    "rounds",
    "watch",
    "track",
    "run_folder",
    "method_setting",
    "needed_packages",
    "run",
    "run_model",
    "run_reader",
    "check_run",
    "edge",
    "page",
]
MAY_USE_TORCH = (
    "fedwright.server_runtime",
    "fedwright.simulation",
    "fedwright.benchmarks",
    "fedwright.api",
)


@dataclass(frozen=True)
class Module:
    """One source file under its dotted name."""

    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text)


@dataclass(frozen=True)
class Import:
    """One imported module; `top_level` when importing the file imports it too."""

    name: str
    line: int
    top_level: bool


def sources_of(repo: Path) -> list[Module]:
    """Every module of the package `fedwright`: its own files, and those of the folders that it links to."""
    linked = [path for path in sorted((repo / "fedwright").iterdir()) if path.is_symlink()]
    return modules_of(repo / "fedwright") + [
        Module(f"fedwright.{module.name}", module.text) for link in linked for module in modules_of(link.resolve())
    ]


def modules_of(folder: Path) -> list[Module]:
    """Every Python file below a folder, named from the folder's own name down; links are not followed."""
    return [Module(_dotted(path, folder), path.read_text()) for path in sorted(folder.rglob("*.py"))]


def _dotted(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(module: Module) -> Iterator[Import]:
    """All absolute imports, wherever they stand; `from a import b` counts as `a` and as `a.b`."""
    tree = module.tree
    inner = {id(node) for outer in ast.walk(tree) if _runs_later(outer) for node in ast.walk(outer)}
    for node in ast.walk(tree):
        top_level = id(node) not in inner
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, top_level) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield Import(node.module, node.lineno, top_level)
            yield from (Import(f"{node.module}.{alias.name}", node.lineno, top_level) for alias in node.names)


def _runs_later(node: ast.AST) -> bool:
    """Whether importing the file does not run what stands inside: a function, or a block for the type checker."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def below(name: str, package: str) -> bool:
    """Whether a dotted name is the package or inside it."""
    return name == package or name.startswith(f"{package}.")


def import_direction(module: Module) -> Iterator[str]:
    """Sides do not know each other; blocks know nothing of rounds, devices or methods."""
    owners = [package for package in MAY_IMPORT if below(module.name, package)]
    if not owners:
        return
    allowed = MAY_IMPORT[max(owners, key=len)]
    for found in imports_of(module):
        own = found.name.startswith("fedwright.") and not found.name.startswith("fedwright.__")
        if own and not any(below(found.name, package) for package in allowed):
            yield f"{module.name}:{found.line} imports {found.name}; allowed: {', '.join(allowed)}"


def server_layers(module: Module) -> Iterator[str]:
    """Inside the server nothing imports what stands above it, so there are no cycles."""
    name = _layer(module.name)
    if name is None:
        return
    if name not in SERVER_LAYERS:
        yield f"{module.name} is in no layer; put {name} into SERVER_LAYERS where it belongs"
        return
    for found in imports_of(module):
        other = _layer(found.name)
        if other in SERVER_LAYERS and SERVER_LAYERS.index(other) > SERVER_LAYERS.index(name):
            yield f"{module.name}:{found.line} imports {found.name}, which stands above {name}"


def _layer(name: str) -> str | None:
    """The part of server_runtime that a dotted name lies in."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["fedwright", "server_runtime"] and len(parts) > 2 else None


def torch_place(module: Module) -> Iterator[str]:
    """torch is the server's."""
    if any(below(module.name, package) for package in MAY_USE_TORCH):
        return
    for found in imports_of(module):
        if below(found.name, "torch"):
            yield f"{module.name}:{found.line} imports torch; only {', '.join(MAY_USE_TORCH)} may"


def device_packages(module: Module) -> Iterator[str]:
    """The device side needs nothing but its seven packages and the standard library of Python 3.10."""
    if not any(below(module.name, package) for package in DEVICE_SIDE):
        return
    allowed = {"fedwright"} | DEVICE_PACKAGES | set(sys.stdlib_module_names) | OPTIONAL.get(module.name, set())
    for found in imports_of(module):
        root = found.name.split(".")[0]
        if root not in allowed or (root in TOO_NEW and found.top_level):
            yield f"{module.name}:{found.line} imports {found.name}, which a device does not have"


def plain_types(module: Module) -> Iterator[str]:
    """Nothing is in brackets that Python 3.10 cannot put there."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] in PLAIN_IN_3_10:
            yield f"{module.name}:{node.lineno} has {ast.unparse(node)}, which ends Python 3.10 with a TypeError"


def lazy_commands(module: Module) -> Iterator[str]:
    """A command imports a side only when it runs, so that help and other commands stay fast."""
    functions = {node.name for node in module.tree.body if isinstance(node, ast.FunctionDef)}
    if not below(module.name, "fedwright.cli") or not functions & {"add_parser", "main"}:
        return
    for found in imports_of(module):
        sides = (*SIDES, *HEAVY)
        eager = found.top_level and any(below(found.name, side) for side in sides)
        if eager and not below(found.name, LIGHT):
            yield f"{module.name}:{found.line} imports {found.name} at the top; do so inside the function that runs"


def docstring(module: Module) -> Iterator[str]:
    """Every module says what it is for."""
    if not ast.get_docstring(module.tree):
        yield f"{module.name} has no module docstring"


def size(module: Module) -> Iterator[str]:
    """Files and functions stay readable."""
    lines = len(module.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{module.name} has {lines} lines; at most {MAX_FILE_LINES}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{module.name}:{node.lineno} {node.name} has {length} lines; at most {MAX_FUNCTION_LINES}"


def printing(module: Module) -> Iterator[str]:
    """Only commands write to the terminal."""
    if below(module.name, "fedwright.cli"):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"{module.name}:{node.lineno} prints; use logging, or move it to fedwright/cli"


SOURCE_RULES = [
    import_direction,
    server_layers,
    torch_place,
    device_packages,
    plain_types,
    lazy_commands,
    docstring,
    size,
    printing,
]
