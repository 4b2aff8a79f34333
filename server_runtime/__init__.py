"""Runs on the host: makes models to measure and folds the updates together."""
