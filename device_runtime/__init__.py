"""Runs on the device: needs numpy, onnxruntime, paho-mqtt, msgspec, safetensors, zstandard and psutil, nothing else."""
