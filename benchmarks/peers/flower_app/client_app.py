"""What a device does in a round: SGD over its own samples, in the order that the other system takes too."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional as F

from .model import lenet

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round on this device."""
    torch.set_num_threads(1)
    model = lenet()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = np.load(str(context.node_config["data"]))
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    order = torch.from_numpy(data["orders"][int(message.content["config"]["server-round"]) - 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=float(context.run_config["learning-rate"]))
    for epoch in order:
        for rows in epoch.split(int(context.run_config["batch"])):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(x[rows]), y[rows]))
            optimizer.step()
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(reply), reply_to=message)
