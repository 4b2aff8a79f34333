"""On the host: a network as graphs that train wherever onnxruntime runs."""

from torch import nn

import fedwright as fw

net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
graph = fw.training_graph(net, input_shape=(1, 8, 8), classes=10, optimizer="adam")
graph.save("graph")
print(f"graph: {graph.size_bytes / 1e3:.0f} kB; {fw.predict(graph, device='raspberry-pi-4', batch=16)}")
