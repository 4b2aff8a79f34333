"""What of a batch an ONNX graph lets out: sums over its samples, or single ones."""
