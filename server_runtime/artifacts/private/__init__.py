"""Gradients of single samples inside a training graph: their norms, without most of them ever being made."""
