"""Differential privacy of a run: what was spent, by which sampling and noise, and what is left of a budget."""
