"""Fedwright beside the system that people use today, on the same task, in one run."""
