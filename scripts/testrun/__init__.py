"""Runs test files in groups, each group in a pytest process of its own, so that a crash costs one file."""
