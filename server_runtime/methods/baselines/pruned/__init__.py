"""Baselines whose devices prune a common model to parts of their own."""
