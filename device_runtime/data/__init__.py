"""Data sources on the device: npz, npy, csv, image folders and python functions."""

from fedwright.device_runtime.data.local import LocalData
from fedwright.device_runtime.data.sources import load

__all__ = ["LocalData", "load"]
