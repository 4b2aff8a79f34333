"""What the page does for people who may act: orders for a run, and models as files."""

import asyncio
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from fedwright.protocol.errors import ConfigError
from fedwright.server_runtime.page.answers import body_of, encoded, no_such, page_of, problem
from fedwright.server_runtime.page.runs import without_paths
from fedwright.server_runtime.rounds.orders import make_order
from fedwright.server_runtime.run_folder.rounds import order_in

EXPORT_S = 300.0
# A model is made by a process of its own, which loads a whole framework: one at a time.
_exports = asyncio.Semaphore(1)


async def take_order(request: Request) -> Response:
    """Make an order durable; the same id given twice counts once."""
    data = await body_of(request)
    async with page_of(request).runs.looked_at(request.path_params["run"]) as watch:
        if watch is None:
            return no_such("run")
        try:
            order, done = make_order({**data, "by": request.state.person.name}), watch.history.rounds_done
            if order.device and order.device not in watch.history.devices:
                return no_such("device")
            if order.kind == "rounds" and order.rounds < done:
                return problem(400, f"{done} rounds were done already; ask for more")
            # Synced before anybody hears that it was taken.
            fresh = await asyncio.to_thread(order_in, watch.folder, order)
        except ConfigError as err:
            return problem(400, without_paths(str(err)))
        return encoded({"taken": True, "fresh": fresh, "served": watch.served})


async def export(request: Request) -> Response:
    """The model that a device should use now, or the global one, as one ONNX file."""
    device = str((await body_of(request)).get("device", ""))
    async with page_of(request).runs.looked_at(request.path_params["run"]) as watch:
        if watch is None:
            return no_such("run")
        if device and device not in watch.history.devices:
            return no_such("device")
        folder = watch.folder
    draft = tempfile.TemporaryDirectory(prefix="fedwright-export-")
    file = Path(draft.name) / "model.onnx"
    async with _exports:
        said = await asyncio.to_thread(_write_model, folder, device, file)
    if said:
        draft.cleanup()
        return problem(409, said)
    name = re.sub(r"[^A-Za-z0-9_.\-]", "_", f"{folder.name}-{device or 'global'}.onnx")
    return FileResponse(file, filename=name, background=BackgroundTask(draft.cleanup))


def _write_model(folder: Path, device: str, file: Path) -> str:
    """Write a model by the command that does so; returns why not, where that fails."""
    words = [
        sys.executable,
        "-m",
        "fedwright",
        "server",
        "export",
        "--run",
        str(folder),
        f"--device={device}",
        str(file),
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=EXPORT_S, check=False)
    except subprocess.TimeoutExpired:
        return "the model was not ready in time; use `fedwright server export` on the server"
    if done.returncode == 0 and file.exists():
        return ""
    last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
    return without_paths(last.removeprefix("fedwright: "))
