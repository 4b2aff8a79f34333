"""Reverse-mode differentiation over ONNX graphs, one small rule per operator."""
