"""The page of metrics: every figure that a server, an edge or an agent can serve, read from the sources.

The sources are read, not run: some figures are there only with a certificate, a thermometer or a closed round.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import NamedTuple

from fedwright.device_runtime import metrics as of_devices
from fedwright.protocol.support import metrics as of_all
from fedwright.server_runtime.edge import metrics as of_edges
from fedwright.server_runtime.watch import metrics as of_runs

# What makes a figure in the sources, and what Prometheus calls it.
MAKERS = {"gauge": "gauge", "counter": "counter", "Metric": "gauge", "Histogram": "histogram", "About": "gauge"}
# The connections of an edge to its host have names of their own.
ROLES = ("", "host_")
HEAD = """# Metrics

What `/metrics` serves ([how](../how-to/metrics.md)); figures of the process itself (`process_…`) come with them.
"""


class Listed(NamedTuple):
    """One row of the page."""

    name: str
    kind: str
    label: str
    help: str


def listed(module: ModuleType) -> Iterator[Listed]:
    """The figures that a module makes, in its order, each once."""
    seen: set[str] = set()
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(function, ast.FunctionDef):
            continue
        words = {
            each.targets[0].id: each.value.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign)
            and isinstance(each.targets[0], ast.Name)
            and isinstance(each.value, ast.Constant)
        }
        for call in ast.walk(function):
            row = _row(call, words)
            if row is not None and row.name not in seen:
                seen.add(row.name)
                yield row


def _row(call: ast.AST, words: Mapping[str, object]) -> Listed | None:
    """A figure by the call that makes it; None for any other, and for one whose name is put together."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in MAKERS):
        return None
    name, help, *rest = [_word(part, words) for part in call.args]
    if not name:
        return None
    labelled = call.func.id == "Metric"
    kind = rest[2] if labelled and len(rest) > 2 else MAKERS[call.func.id]
    label = rest[1] if labelled and len(rest) > 1 else ""
    return Listed(name, kind, label, help)


def _word(part: ast.expr, words: Mapping[str, object]) -> str:
    found = words.get(part.id, "") if isinstance(part, ast.Name) else getattr(part, "value", "")
    return found if isinstance(found, str) else ""


def common(*roles: str) -> Iterator[Listed]:
    """The disk, and the connections by their roles."""
    yield from listed(of_all)
    for role in roles:
        for call in ast.walk(ast.parse(inspect.getsource(of_all.link_figures))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in MAKERS:
                end, help = call.args[0], call.args[1]
                assert isinstance(end, ast.JoinedStr)
                yield Listed(f"fedwright_{role}link{_word(end.values[-1], {})}", call.func.id, "", _word(help, {}))


def metrics_page() -> str:
    """All figures by who serves them."""
    devices = [Listed(f"fedwright_{name}", kind, "device", help) for name, help, _, kind in of_runs.OF_DEVICES]
    parts = {
        "Of a run": [*listed(of_runs), *devices, *common("")],
        "Of an edge": [*listed(of_edges), *common(*ROLES)],
        "Of an agent": [*listed(of_devices), *common("")],
    }
    lines = [HEAD]
    for title, rows in parts.items():
        lines += [f"## {title}", "", "| name | kind | label | meaning |", "|---|---|---|---|"]
        for name, kind, label, help in rows:
            lines.append(f"| `{name}` | {kind} | {f'`{label}`' if label else ''} | {help} |")
        lines.append("")
    return "\n".join(lines)
