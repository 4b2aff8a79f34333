"""Runs on the device: needs numpy, onnxruntime, paho-mqtt, msgspec, safetensors, zstd and psutil, nothing else."""
