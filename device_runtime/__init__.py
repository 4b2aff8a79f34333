"""Runs on the device: numpy, onnxruntime and paho only."""
