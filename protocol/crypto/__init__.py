"""Signatures, key agreement and sums that hide their parts."""
