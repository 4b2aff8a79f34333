"""Suites, data sets, partitioners and reports."""
