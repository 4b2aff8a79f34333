"""Servers between the host and its devices."""
