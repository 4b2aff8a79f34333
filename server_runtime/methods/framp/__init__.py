"""FRAMP."""
