"""Suites that measure what the project promises."""
