"""Tools for experiments that are told how a run does: TensorBoard, MLflow, Weights & Biases, plain lines."""
