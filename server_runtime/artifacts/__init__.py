"""From a torch module to a training graph that stock onnxruntime runs."""
