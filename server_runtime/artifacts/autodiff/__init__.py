"""Reverse-mode differentiation over ONNX graphs; importing it registers every rule and lowering."""

from fedwright.server_runtime.artifacts.autodiff import rules

__all__ = ["rules"]
