"""Fedwright trains one learning task across a fleet of unequal edge devices."""

__version__ = "0.1.0"
