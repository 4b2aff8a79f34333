"""Three pumps learn how hot a healthy one gets; where a reading is far off, something is worn."""

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnxruntime

import fedwright as fw
from fedwright.protocol.link.broker import Broker

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
WORN = slice(15, 20)


def readings(seed, hours):
    """Load, speed and air of a pump at each hour, and its heat; all of them about 0, spread by about 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(hours, 3)).astype(np.float32)
    heat = 0.8 * x[:, 0] + 0.4 * x[:, 1] * x[:, 0] + 0.5 * x[:, 2] + 0.05 * rng.normal(size=hours)
    return x, heat.astype(np.float32)


def write_file(path, seed):
    """What a pump has kept of its healthy days."""
    x, heat = readings(seed, 300)
    np.savetxt(path, np.column_stack([x, heat]), delimiter=",", header="load,speed,air,heat", comments="", fmt="%.4f")
    return f"csv:{path}?targets=heat"


with Broker() as broker, tempfile.TemporaryDirectory() as place, ExitStack() as pumps:
    config = {
        "method": {"name": "fedavg"},
        "model": {"model": "python:pump_model:make", "task": "regress"},
        "train": {"batch": 16, "epochs": 5, "learning_rate": 0.1},
        "run": {"rounds": ROUNDS, "folder": place, "name": "pumps"},
        "fleet": {"broker": broker.url, "devices": 3},
    }
    with fw.Server(config) as server:
        for number in range(3):
            data = write_file(f"{place}/pump-{number}.csv", seed=number)
            pumps.enter_context(fw.Device(broker.url, data, device=f"pump-{number}", state=place))
        run = server.wait()
    run.export("model.onnx")
    print(f"error of the heat, round by round: {[round(row['rmse_before'], 2) for row in run.rounds]}")

x, heat = readings(seed=9, hours=24)
heat[WORN] += 1.5
model = onnxruntime.InferenceSession("model.onnx")
expected = model.run(None, {model.get_inputs()[0].name: x})[0][:, 0]
off = np.abs(heat - expected)
hours = np.flatnonzero(off > 0.75).tolist()
Path("worn.json").write_text(json.dumps(hours))
print(f"hours at which the pump was far hotter or colder than expected: {hours}")
