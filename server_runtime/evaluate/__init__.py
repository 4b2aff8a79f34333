"""Measures of a model over a fleet."""
