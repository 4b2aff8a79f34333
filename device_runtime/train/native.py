"""Errors of the stock onnxruntime."""

from onnxruntime.capi import onnxruntime_pybind11_state as native

# onnxruntime's errors share no base class of their own.
RUNTIME_ERRORS = (
    native.Fail,
    native.InvalidArgument,
    native.InvalidGraph,
    native.InvalidProtobuf,
    native.NoSuchFile,
    native.NotImplemented,
    native.RuntimeException,
    native.EPFail,
    RuntimeError,
)
