"""Two cameras whose loops go on while an agent in each trains on what was seen before."""

import sys
import tempfile

import numpy as np

import fedwright as fw
from fedwright.protocol.link.broker import Broker

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 4


def picture(rng, somebody):
    """8×8 grey; somebody at the door is a bright column."""
    image = rng.random((1, 8, 8)) * 0.5
    image[:, :, 3:5] += 0.8 * somebody
    return image.astype(np.float32)


def seen(seed, count=80):
    """What a camera kept of its day, with what its owner said about it."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    return fw.Dataset(np.stack([picture(rng, one) for one in y]), y)


with Broker() as broker, tempfile.TemporaryDirectory() as state:
    config = {
        "method": {"name": "fedavg"},
        "run": {"rounds": ROUNDS, "folder": state, "name": "cameras"},
        "fleet": {"broker": broker.url, "devices": 2},
    }
    with fw.Server(config) as server, fw.Device(broker.url, seen(1), device="yard", state=state):
        # This is the part of one camera.
        with fw.Device(broker.url, seen(2), device="door", state=state, once=True) as agent:
            rng, taken = np.random.default_rng(3), 0
            while not agent.wait(0.05):
                picture(rng, somebody=taken % 2)
                taken += 1
        run = server.wait()
    run.export("model.onnx")
    print(f"{taken} pictures were taken while two cameras trained: {run}")
